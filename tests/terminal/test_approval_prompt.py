import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from turnstream_client.events import Json
from turnstream_terminal.approvals import ApprovalPrompt

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


class Person:
    """A person who answers questions with the given lines, and edits with the given texts. `seen` has the text that was
    shown.
    """

    def __init__(self, *lines: str, edits: tuple[str | None, ...] = ()) -> None:
        self._lines = iter(lines)
        self._edits: Iterator[str | None] = iter(edits)
        self._paper = io.StringIO()
        self.drafts: list[str] = []
        self.prompts: list[str] = []
        self.prompt = ApprovalPrompt(Console(file=self._paper, width=80), self._read, self._edit, lambda: NOW)

    @property
    def seen(self) -> str:
        return self._paper.getvalue()

    def _read(self, prompt: str) -> str:
        self.prompts.append(prompt)
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
def test_allow_sends_the_digest_of_the_input_that_was_shown(word: str) -> None:
    assert Person(word).prompt.ask(call(), 0) == {"type": "approve", **DECIDED}


def test_an_approval_is_remembered_for_the_chat_where_the_server_allows_that() -> None:
    person = Person("c")
    assert person.prompt.ask(call() | {"can_remember": True}, 0) == {
        "type": "approve",
        **DECIDED,
        "remember": {"scope": "chat"},
    }
    assert person.prompts == ["(a)llow, allow for this (c)hat, (d)eny, (e)dit, (s)kip? "]
    assert Person("c", "s").prompt.ask(call() | {"can_remember": False}, 0) is None


def test_a_call_is_denied_with_or_without_a_reason() -> None:
    assert Person("d", "too dear").prompt.ask(call(), 0) == {"type": "deny", **DECIDED, "reason": "too dear"}
    assert Person("no", "").prompt.ask(call(), 0) == {"type": "deny", **DECIDED}


def test_a_call_that_is_skipped_is_left_waiting() -> None:
    assert Person("s").prompt.ask(call(), 0) is None


@pytest.mark.parametrize("line", ["", "what?", "allowed", "and then?"])
def test_nothing_is_decided_by_accident(line: str) -> None:
    person = Person(line, "s")
    assert person.prompt.ask(call(), 0) is None
    assert "Answer with one of: allow, deny, edit, skip." in person.seen


def test_ctrl_d_decides_nothing() -> None:
    with pytest.raises(EOFError):
        Person().prompt.ask(call(), 0)
    with pytest.raises(EOFError):
        Person("d").prompt.ask(call(), 0)


def test_edited_arguments_are_sent() -> None:
    person = Person("e", edits=('{"room": "21"}',))
    assert person.prompt.ask(call(), 0) == {"type": "approve", **DECIDED, "input": {"room": "21"}}
    assert person.drafts == ['{\n  "room": "12"\n}']


def test_an_edit_that_changes_nothing_sends_no_input() -> None:
    assert Person("e", edits=('{ "room" : "12" }',)).prompt.ask(call(), 0) == {"type": "approve", **DECIDED}


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ('{"room": ', "The arguments are not valid JSON ("),
        ('["21"]', "The arguments must be one JSON object, {…}; edit them again."),
    ],
)
def test_an_invalid_edit_is_kept_as_the_draft_of_the_next(text: str, notice: str) -> None:
    person = Person("e", "e", edits=(text, '{"room": "21"}'))
    action = person.prompt.ask(call(), 0)
    assert action is not None
    assert action["input"] == {"room": "21"}
    assert person.drafts[1] == text
    assert notice in person.seen


@pytest.mark.parametrize("left", [None, "", "  \n"])
def test_an_editor_closed_without_a_change_decides_nothing(left: str | None) -> None:
    assert Person("e", "s", edits=(left,)).prompt.ask(call(), 0) is None


def test_a_client_tool_gets_a_result_or_is_declined() -> None:
    result = {"type": "result", "tool_use_id": "call_1"}
    assert Person("r", "the sea").prompt.ask(call("client"), 0) == {**result, "output": "the sea"}
    assert Person("d", "no window").prompt.ask(call("client"), 0) == {
        **result,
        "output": "The user declined to run this tool. no window",
        "is_error": True,
    }


def test_an_unknown_kind_of_call_can_only_be_skipped() -> None:
    person = Person("a", "s")
    assert person.prompt.ask(call("vote"), 0) is None
    assert "waits for an answer that this client does not know" in person.seen
    assert person.prompts == ["(s)kip? "] * 2


def test_a_call_is_shown_with_its_arguments_and_how_many_more_wait() -> None:
    person = Person("s")
    person.prompt.ask(call(input={"room": "12", "why": "a\x1b[2Jb"}), 2)
    assert person.seen.splitlines() == [
        "",
        "? book_room asks to run · 2 more after this",
        "    {" + " " * 75,
        '      "room": "12",'.ljust(80),
        r'      "why": "a\u001b[2Jb"'.ljust(80),
        "    }".ljust(80),
    ]


@pytest.mark.parametrize(("input", "shown"), [({}, "(no arguments)"), ("{not JSON", "    {not JSON")])
def test_missing_and_invalid_arguments_are_shown(input: Any, shown: str) -> None:
    person = Person("s")
    person.prompt.ask(call(input=input), 0)
    assert shown in person.seen


@pytest.mark.parametrize(
    ("left", "remark"),
    [
        (timedelta(seconds=-1), "has expired"),
        (timedelta(seconds=20), "expires at 12:00:20, in 20 s"),
        (timedelta(minutes=15), "expires at 12:15:00, in 15 min"),
        (timedelta(hours=3), "expires at 15:00"),
        (timedelta(days=2), "expires on 2026-05-03 at 12:00"),
    ],
)
def test_the_time_left_to_answer_is_shown(left: timedelta, remark: str) -> None:
    person = Person("s")
    person.prompt.ask(call(expires_at=(NOW + left).isoformat()), 0)
    assert person.seen.splitlines()[1] == f"? book_room asks to run · {remark}"


def question(**input: Any) -> Json:
    return call("elicitation", {"message": "How long?", **input})


def test_a_question_of_a_tool_is_answered_member_by_member() -> None:
    schema = {
        "type": "object",
        "properties": {
            "nights": {"type": "integer", "title": "Nights"},
            "price": {"type": "number"},
            "quiet": {"type": "boolean", "description": "away from the road"},
            "bed": {"type": "string", "enum": ["single", "double"]},
            "note": {"type": "string"},
        },
    }
    person = Person("a", "2", "9.5", "y", "single", "")
    assert person.prompt.ask(question(schema=schema), 0) == {
        "type": "answer",
        **DECIDED,
        "action": "accept",
        "content": {"nights": 2, "price": 9.5, "quiet": True, "bed": "single"},
    }
    assert "How long?" in person.seen
    assert person.prompts[1:4] == ["Nights (integer): ", "price (number): ", "quiet (away from the road, boolean): "]
    several = Person("a", "two", "cheap", "perhaps", "x", "y").prompt.ask(question(schema=schema), 0)
    assert several is not None
    assert list(several["content"].values()) == ["two", "cheap", "perhaps", "x", "y"], "the server says what is wrong"


def test_a_question_with_a_page_shows_its_address_and_may_be_declined() -> None:
    person = Person("a")
    assert person.prompt.ask(question(url="https://x.example"), 0) == {"type": "answer", **DECIDED, "action": "accept"}
    assert "https://x.example" in person.seen
    assert Person("d").prompt.ask(question(), 0) == {"type": "answer", **DECIDED, "action": "decline"}


def test_a_sign_in_shows_its_link_and_may_be_declined() -> None:
    waiting = call("sign_in", {"message": "Sign in to calendar.", "url": "https://x.example/sign-in/1"})
    person = Person("d")
    assert person.prompt.ask(waiting, 0) == {"type": "answer", **DECIDED, "action": "decline"}
    assert "https://x.example/sign-in/1" in person.seen
    assert "needs you to sign in" in person.seen
    assert Person("a").prompt.ask(waiting, 0) == {"type": "answer", **DECIDED, "action": "accept"}


@pytest.mark.parametrize(("lines", "chosen"), [(["2"], "b"), (["3", "0", "two", "1"], "a"), ([""], None), ([], None)])
def test_a_call_in_the_background_is_chosen_by_its_number(lines: list[str], chosen: str | None) -> None:
    jobs: list[Json] = [
        {
            "tool_use_id": id,
            "name": f"dig {id}",
            "state": "running",
            "progress": "half",
            "child": None,
            "input": {"n": 1},
        }
        for id in "ab"
    ]
    person = Person(*lines)
    found = person.prompt.choose_call(jobs)
    assert (found and found["tool_use_id"]) == chosen
    assert "  1  dig a n=1 · in the background · half" in person.seen
    assert person.seen.count("Answer with a number from 1 to 2") == max(0, len(lines) - 1)


def test_the_answer_may_be_stopped_in_place_of_a_call() -> None:
    with pytest.raises(KeyboardInterrupt):
        Person("a").prompt.choose_call([])
