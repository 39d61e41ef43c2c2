from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from turnstream_client.events import Json
from turnstream_terminal.blocks import (
    degraded_line,
    edited_input,
    file_labels,
    full_blocks,
    reason_not_run,
    result_remarks,
)


def noted(**notes: Any) -> Json:
    return {"type": "tool_result", "text": "", "notes": notes}


def test_remarks_name_the_policies_of_a_call_and_leave_out_its_times() -> None:
    assert result_remarks(noted(seconds=0.2, retries=2, cut={"shown": 1, "of": 9})) == ["tried again", "cut"]
    assert result_remarks(noted(something_new=1)) == ["something new"]
    assert result_remarks({"type": "tool_result", "text": ""}) == []


def test_edited_arguments_are_remarked_and_approved_ones_are_not() -> None:
    changed = noted(approval={"decision": "approve", "input": '{"room": "21"}'})
    assert (edited_input(changed), result_remarks(changed)) == ({"room": "21"}, ["edited"])
    assert edited_input(noted(approval={"decision": "approve"})) is None
    assert edited_input(noted(approval={"decision": "approve", "input": "no JSON"})) == "no JSON"


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        ("denied", "not allowed"),
        ("expired", "not answered in time"),
        ("superseded", "not run, because the user wrote something else"),
        ("approve", ""),
    ],
)
def test_the_reason_why_a_waiting_call_did_not_run(decision: str, reason: str) -> None:
    assert reason_not_run(noted(approval={"decision": decision})) == reason


def test_the_degraded_line_groups_by_tool() -> None:
    degraded: list[Json] = [
        {"what": "cut", "index": 2, "tool": "search"},
        {"what": "retries", "index": 4, "tool": "search"},
        {"what": "cut", "index": 6, "tool": "search"},
        {"what": "timeout", "index": 7, "tool": "fetch"},
        {"what": "all_tools_failed", "index": None, "tool": None},
    ]
    assert degraded_line(degraded) == "degraded: search cut, tried again · fetch timed out · all tools failed"
    assert degraded_line([]) == ""


def test_the_degraded_line_names_a_limit_that_was_reached_with_its_figures() -> None:
    rounds = {"what": "max_rounds", "tool": None, "limit": 5, "used": 5}
    cost = {"what": "budget_cost", "tool": None, "limit": 0.5, "used": 0.61}
    assert degraded_line([rounds, cost]) == (
        "degraded: limit of tool rounds reached (5 of 5), budget used up (0.61 of 0.5)"
    )


def test_the_degraded_line_names_the_cost_of_cut_replies() -> None:
    continued = {"what": "continued", "tool": None, "round": 1, "output_tokens": 1200, "estimated": True}
    rewritten = {"what": "rewritten", "tool": None, "round": 2, "output_tokens": 7, "estimated": False}
    assert degraded_line([continued, rewritten]) == (
        "degraded: interrupted and continued (about 1,200 tokens before that),"
        " interrupted and written anew (7 tokens before that)"
    )


def test_files_of_a_result_are_named_by_their_type() -> None:
    picture = {"type": "image", "source": {"type": "upload", "id": "7", "media_type": "image/png"}}
    shown = {"type": "tool_result", "text": "Here", "content": [{"type": "text", "length": 4}, picture]}
    assert file_labels(shown) == ["[image/png]"]
    assert file_labels({"type": "tool_result", "text": "Here"}) == []


def test_the_full_contents_of_a_result_show_the_data_that_the_model_does_not_get() -> None:
    result = {"type": "tool_result", "name": "tides", "text": "high", "data": {"city": "Brest"}}
    console = Console(width=80, file=StringIO())
    console.print(*full_blocks([result]))
    assert 'Data that the model does not get: {"city": "Brest"}' in console.file.getvalue()  # type: ignore[attr-defined]
