"""Each copy of a chat has all fields that clients choose."""

from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from turnstream.api.schemas.requests import ChatChanges, NewChat
from turnstream.api.schemas.responses import ChatOut
from turnstream.api.views import chat_out
from turnstream.domain.chats import Chat
from turnstream.extensions.admin.statement_list import statements
from turnstream.extensions.chat_stream.cursor import digest_of
from turnstream.kit.ids import new_id

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CHAT = Chat(new_id(), "ann", None, None, {}, NOW, NOW)
# An example value of each field.
CHOSEN: dict[str, Any] = {"title": "Tides", "system_prompt": "Rhyme.", "settings": {"model": "m"}}
ASKS_FOR_SEALED_TEXTS = "libraries.sealed_rows.HAS_SEALED_ROWS"
STATEMENTS = {
    name: each.sql
    for name, each in statements().items()
    if "system_prompt" in each.sql and name != ASKS_FOR_SEALED_TEXTS
}


def test_each_field_that_clients_choose_has_an_example() -> None:
    assert CHOSEN.keys() == NewChat.model_fields.keys() == ChatChanges.model_fields.keys()
    assert CHOSEN.keys() == {each.name for each in fields(Chat)} - {"id", "owner", "created_at", "updated_at"}
    assert CHOSEN.keys() <= ChatOut.model_fields.keys()


@pytest.mark.parametrize("field", CHOSEN)
def test_each_is_shown_and_readers_learn_of_its_change(field: str) -> None:
    changed = replace(CHAT, **{field: CHOSEN[field]})
    assert getattr(chat_out(changed), field) == CHOSEN[field]
    assert digest_of(changed) != digest_of(CHAT)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_with_one_of_them_has_all(name: str) -> None:
    assert [field for field in CHOSEN if field not in STATEMENTS[name]] == []
