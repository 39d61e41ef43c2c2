from typing import Any

import pytest

from app.terminal.assembler import Json
from app.terminal.blocks import degraded_line, edited_input, files_in_words, remarks, why_not_run


def noted(**notes: Any) -> Json:
    return {"type": "tool_result", "text": "", "notes": notes}


def test_the_policies_that_a_call_needed_are_told_in_words_and_what_every_call_has_is_not() -> None:
    assert remarks(noted(seconds=0.2, retries=2, cut={"shown": 1, "of": 9})) == ["tried again", "cut"]
    assert remarks(noted(something_new=1)) == ["something new"]
    assert remarks({"type": "tool_result", "text": ""}) == []


def test_arguments_that_a_person_changed_are_told_apart_from_those_that_were_allowed() -> None:
    changed = noted(approval={"decision": "approve", "input": '{"room": "21"}'})
    assert (edited_input(changed), remarks(changed)) == ({"room": "21"}, ["edited"])
    assert edited_input(noted(approval={"decision": "approve"})) is None
    assert edited_input(noted(approval={"decision": "approve", "input": "no JSON"})) == "no JSON"


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        ("denied", "not allowed"),
        ("expired", "nobody answered in time"),
        ("superseded", "not run, because something else was said"),
        ("approve", ""),
    ],
)
def test_why_a_call_that_waited_was_not_run_is_told(decision: str, words: str) -> None:
    assert why_not_run(noted(approval={"decision": decision})) == words


def test_what_was_needed_over_the_turn_is_one_line_by_tool() -> None:
    degraded: list[Json] = [
        {"what": "cut", "index": 2, "tool": "search"},
        {"what": "retries", "index": 4, "tool": "search"},
        {"what": "cut", "index": 6, "tool": "search"},
        {"what": "timeout", "index": 7, "tool": "fetch"},
        {"what": "all_tools_failed"},
    ]
    assert degraded_line(degraded) == "degraded: search cut, tried again · fetch out of time · no tool worked"
    assert degraded_line([]) == ""


def test_files_of_a_result_are_named_by_their_type() -> None:
    picture = {"type": "image", "source": {"type": "upload", "id": "7", "media_type": "image/png"}}
    shown = {"type": "tool_result", "text": "Here", "content": [{"type": "text", "length": 4}, picture]}
    assert files_in_words(shown) == ["[image/png]"]
    assert files_in_words({"type": "tool_result", "text": "Here"}) == []
