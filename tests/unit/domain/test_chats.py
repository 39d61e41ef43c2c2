import re
from dataclasses import replace
from pathlib import Path
from typing import get_args
from uuid import UUID

import pytest

from tests.support.turns import turn_of
from turnstream.domain.chats import OnBusy, Placement, place_message, title_from
from turnstream.domain.errors import Conflict
from turnstream.domain.turns import Status

ENDED = replace(turn_of(status="complete"), id=UUID(int=9))
OLDER = replace(turn_of(status="running"), id=UUID(int=10))
NEWER = replace(turn_of(status="queued"), id=UUID(int=11))
STOPPING = replace(turn_of(status="running"), id=UUID(int=12), cancel_requested=True)
VALUES: tuple[OnBusy, ...] = get_args(OnBusy)
every_policy = pytest.mark.parametrize("on_busy", VALUES)
PLACES: dict[OnBusy, Placement] = {
    "enqueue": Placement(NEWER),
    "interrupt": Placement(NEWER, interrupted=(OLDER.id, NEWER.id)),
    "steer": Placement(NEWER, steerable=(OLDER, NEWER)),
    "branch": Placement(ENDED),
}


@every_policy
def test_a_message_follows_an_answer_that_has_ended(on_busy: OnBusy) -> None:
    assert place_message(ENDED, [ENDED], on_busy) == Placement(ENDED)


@every_policy
def test_the_first_message_of_a_chat_is_at_the_root(on_busy: OnBusy) -> None:
    assert place_message(None, [], on_busy) == Placement(None)


@pytest.mark.parametrize("on_busy", [each for each in VALUES if each != "reject"])
def test_each_policy_has_its_place_on_a_busy_branch(on_busy: OnBusy) -> None:
    assert place_message(NEWER, [ENDED, OLDER, NEWER], on_busy) == PLACES[on_busy]


@every_policy
def test_the_page_of_the_api_tells_each_policy(on_busy: OnBusy) -> None:
    page = (Path(__file__).parents[3] / "docs/api.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| `on_busy` \| the message \|$(.*?)^$", page, re.MULTILINE | re.DOTALL)
    assert f"\n| `{on_busy}`" in table


def test_beside_the_first_turns_of_a_chat_is_the_root() -> None:
    assert place_message(NEWER, [OLDER, NEWER], "branch") == Placement(None)


def test_a_turn_that_is_to_stop_is_not_steered() -> None:
    assert place_message(NEWER, [STOPPING, NEWER], "steer") == Placement(NEWER, steerable=(NEWER,))


@pytest.mark.parametrize(("status", "reason"), [("running", "is still running"), ("waiting", "waits for an action")])
def test_a_rejected_message_names_the_open_turn_and_the_remedies(status: Status, reason: str) -> None:
    turn = replace(NEWER, status=status)
    with pytest.raises(Conflict, match=rf"Turn {turn.id} .*{reason}.* or send another `on_busy`"):
        place_message(turn, [ENDED, turn], "reject")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (" \n", None),
        ("Two\n words ", "Two words"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("Two " * 20, "Two " * 14 + "Two…"),
        ("word, " * 20, "word, " * 9 + "word…"),
        ("x " + "y" * 70, "x " + "y" * 57 + "…"),
    ],
)
def test_the_beginning_of_a_text_is_a_title(text: str, title: str | None) -> None:
    assert title_from(text) == title
