"""The cache of recent chats has a bounded size."""

from datetime import UTC, datetime
from typing import get_args

import pytest

from turnstream.api.recent_chats import RecentChats
from turnstream.domain.chats import Chat, OnBusy
from turnstream.kit.ids import new_id
from turnstream.storage.chats.exchanges import Position, Target

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_chat(system_prompt: str | None = None, **settings: object) -> Chat:
    return Chat(new_id(), "ann", None, system_prompt, settings, NOW, NOW)


def test_the_chats_that_were_written_last_are_known() -> None:
    recent = RecentChats(lambda _turn: None)
    chats = [a_chat() for _ in range(1001)]
    for chat in chats:
        recent.keep(chat)
    known = [recent.take(Target("ann", chat.id)) is not None for chat in chats]
    assert known == [False, *[True] * 1000]


def test_a_chat_with_much_text_is_not_kept() -> None:
    recent = RecentChats(lambda _turn: None)
    for chat in (a_chat("x" * 20_000), a_chat(output={"schema": "x" * 20_000})):
        recent.keep(chat)
        assert recent.take(Target("ann", chat.id)) is None


# Whether the server finds the position of a message without a read. For a steer it must read, because another replica
# may run the open turn that would apply the steer.
WITHOUT_A_READ: dict[OnBusy, bool] = {
    "reject": True,
    "enqueue": True,
    "interrupt": True,
    "steer": False,
    "branch": True,
}


@pytest.mark.parametrize("on_busy", get_args(OnBusy))
def test_a_chat_is_known_to_a_message_that_is_placed_behind_its_newest_turn(on_busy: OnBusy) -> None:
    recent, chat = RecentChats(lambda _turn: None), a_chat()
    recent.keep(chat)
    assert (recent.take(Target("ann", chat.id, on_busy=on_busy)) is not None) == WITHOUT_A_READ[on_busy]


def test_a_chat_is_given_once() -> None:
    recent, chat = RecentChats(lambda _turn: None), a_chat("Rhyme.")
    recent.keep(chat)
    assert recent.take(Target("ann", chat.id, on_busy="steer")) is None, "it may go into a turn"
    position = recent.take(Target("ann", chat.id))
    assert position is not None
    assert position == Position(chat)
    assert recent.take(Target("ann", chat.id)) is None
