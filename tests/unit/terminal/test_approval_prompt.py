import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from app.terminal.approvals import Dialogue
from app.terminal.assembler import Json

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


class Person:
    """Answers each question with the next line, and edits with the next text; `seen` is what was shown."""

    def __init__(self, *lines: str, edits: tuple[str | None, ...] = ()) -> None:
        self._lines = iter(lines)
        self._edits: Iterator[str | None] = iter(edits)
        self._paper = io.StringIO()
        self.drafts: list[str] = []
        self.asked: list[str] = []
        self.dialogue = Dialogue(Console(file=self._paper, width=80), self._read, self._edit, lambda: NOW)

    @property
    def seen(self) -> str:
        return self._paper.getvalue()

    def _read(self, prompt: str) -> str:
        self.asked.append(prompt)
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None

    def _edit(self, text: str) -> str | None:
        self.drafts.append(text)
        return next(self._edits)


def call(kind: str = "approval", input: Any = None, expires_at: str | None = None) -> Json:
    return {
        "tool_use_id": "call_1",
        "name": "book_room",
        "type": kind,
        "input": {"room": "12"} if input is None else input,
        "input_digest": "d1",
        "expires_at": expires_at,
    }


DECIDED = {"tool_use_id": "call_1", "input_digest": "d1"}


@pytest.mark.parametrize("word", ["a", "allow", "ALL", "y", "yes"])
def test_a_call_is_allowed_as_it_is_in_the_name_of_what_was_looked_at(word: str) -> None:
    assert Person(word).dialogue.ask(call(), 0) == {"type": "approve", **DECIDED}


def test_a_call_is_denied_with_a_reason_or_without() -> None:
    assert Person("d", "too dear").dialogue.ask(call(), 0) == {"type": "deny", **DECIDED, "reason": "too dear"}
    assert Person("no", "").dialogue.ask(call(), 0) == {"type": "deny", **DECIDED}


def test_a_call_that_is_skipped_is_left_waiting() -> None:
    assert Person("s").dialogue.ask(call(), 0) is None


@pytest.mark.parametrize("said", ["", "what?", "allowed", "and then?"])
def test_nothing_is_decided_by_accident(said: str) -> None:
    person = Person(said, "s")
    assert person.dialogue.ask(call(), 0) is None
    assert "Say one of: allow, deny, edit, skip." in person.seen


def test_whoever_leaves_decides_nothing() -> None:
    with pytest.raises(EOFError):
        Person().dialogue.ask(call(), 0)
    with pytest.raises(EOFError):
        Person("d").dialogue.ask(call(), 0)


def test_edited_arguments_go_along() -> None:
    person = Person("e", edits=('{"room": "21"}',))
    assert person.dialogue.ask(call(), 0) == {"type": "approve", **DECIDED, "input": {"room": "21"}}
    assert person.drafts == ['{\n  "room": "12"\n}']


def test_arguments_that_were_edited_to_what_they_were_are_not_edited() -> None:
    assert Person("e", edits=('{ "room" : "12" }',)).dialogue.ask(call(), 0) == {"type": "approve", **DECIDED}


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"room": ', "That is no JSON: "), ('["21"]', "Arguments are one JSON object: {…}.")],
)
def test_an_edit_that_makes_no_sense_is_kept_to_be_mended(text: str, words: str) -> None:
    person = Person("e", "e", edits=(text, '{"room": "21"}'))
    action = person.dialogue.ask(call(), 0)
    assert action is not None
    assert action["input"] == {"room": "21"}
    assert person.drafts[1] == text
    assert words in person.seen


@pytest.mark.parametrize("left", [None, "", "  \n"])
def test_an_editor_that_is_left_without_a_change_decides_nothing(left: str | None) -> None:
    assert Person("e", "s", edits=(left,)).dialogue.ask(call(), 0) is None


def test_a_tool_of_the_client_gets_a_result_from_the_person_or_is_declined() -> None:
    result = {"type": "result", "tool_use_id": "call_1"}
    assert Person("r", "the sea").dialogue.ask(call("client"), 0) == {**result, "output": "the sea"}
    assert Person("d", "no window").dialogue.ask(call("client"), 0) == {
        **result,
        "output": "The user declined to run this tool. no window",
        "is_error": True,
    }


def test_what_a_later_server_wants_can_only_be_skipped() -> None:
    person = Person("a", "s")
    assert person.dialogue.ask(call("vote"), 0) is None
    assert "waits for something that cannot be given here" in person.seen
    assert person.asked == ["(s)kip? "] * 2


def test_a_call_is_shown_with_its_arguments_and_how_many_more_wait() -> None:
    person = Person("s")
    person.dialogue.ask(call(input={"room": "12", "why": "a\x1b[2Jb"}), 2)
    assert person.seen.splitlines() == [
        "",
        "? book_room asks to run · 2 more after this",
        "    {" + " " * 75,
        '      "room": "12",'.ljust(80),
        r'      "why": "a\u001b[2Jb"'.ljust(80),
        "    }".ljust(80),
    ]


@pytest.mark.parametrize(("input", "shown"), [({}, "(no arguments)"), ("{not JSON", "    {not JSON")])
def test_arguments_that_are_none_or_no_json_are_shown_too(input: Any, shown: str) -> None:
    person = Person("s")
    person.dialogue.ask(call(input=input), 0)
    assert shown in person.seen


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (timedelta(seconds=-1), "has expired"),
        (timedelta(seconds=20), "expires at 12:00:20, in 20 s"),
        (timedelta(minutes=15), "expires at 12:15:00, in 15 min"),
        (timedelta(hours=3), "expires at 15:00"),
        (timedelta(days=2), "expires on 2026-05-03 at 12:00"),
    ],
)
def test_how_long_there_is_to_answer_is_said(left: timedelta, words: str) -> None:
    person = Person("s")
    person.dialogue.ask(call(expires_at=(NOW + left).isoformat()), 0)
    assert person.seen.splitlines()[1] == f"? book_room asks to run · {words}"
