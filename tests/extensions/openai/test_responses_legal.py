"""Tests the checker itself: it accepts valid requests, and finds the problems of invalid requests."""

from typing import Any

import pytest

from tests.support.legal.responses import request_problems

USER = {"role": "user", "content": "Hello"}
SAID = {"role": "assistant", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "a", "output": "x"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
CUSTOM_RESULT = {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
SHELL = {"type": "shell_call", "id": "sh_1", "call_id": "s"}
SHELL_RESULT = {"type": "shell_call_output", "id": "sho_1", "call_id": "s"}
PROGRAM = {"type": "program", "id": "cm_1", "call_id": "p"}


def body(*items: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"input": list(items), "stream": True, **members}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def test_a_legal_request_has_no_problems() -> None:
    shown = user(
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "u"},
        {"type": "input_file", "file_url": "u"},
    )
    items = (USER, THOUGHT, SEARCH, SAID, shown, SHELL, SHELL_RESULT, CALL, CUSTOM, RESULT, CUSTOM_RESULT)
    tools = [{"type": "function", "name": "f"}, {"type": "web_search"}]
    assert request_problems(body(*items, tools=tools, tool_choice="auto", instructions="Be kind.")) == []
    assert request_problems(body(USER, PROGRAM, CALL, RESULT)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        body(),
        body(SAID, USER),
        body(USER, SAID),
        body({"role": "user", "content": " "}),
        body(user()),
        body(user({"type": "text", "text": "x"})),
        body(user({"type": "input_text", "text": ""})),
        body(user({"type": "input_file", "filename": "x"})),
        body(USER, {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}, USER),
        body(USER, CALL),
        body(USER, CALL, USER),
        body(USER, CALL, RESULT, RESULT),
        body(USER, RESULT),
        body(USER, CALL, {**CUSTOM_RESULT, "call_id": "a"}),
        body(USER, CALL, RESULT, CALL, RESULT),
        body(USER, {**CALL, "call_id": "a" * 65}, {**RESULT, "call_id": "a" * 65}),
        body(USER, {**CALL, "name": "f g"}, RESULT),
        body(USER, {**CALL, "arguments": "1"}, RESULT),
        body(USER, {**CUSTOM, "input": {}}, CUSTOM_RESULT),
        body(USER, CALL, {**RESULT, "output": ""}),
        body(USER, SHELL, USER),
        body(USER, SHELL_RESULT, USER),
        body(USER, {"type": "web_search_call"}, USER),
        body(USER, THOUGHT, USER),
        body(USER, CALL, THOUGHT, RESULT),
        body(USER, THOUGHT, THOUGHT, SAID, USER),
        body(USER, {**THOUGHT, "encrypted_content": None}, SAID, USER),
        body(USER, tool_choice="auto"),
        body(USER, tools=[{"type": "function", "name": ""}]),
        body(USER, instructions=""),
        {"input": [USER]},
    ],
)
def test_a_request_that_the_api_refuses_is_a_problem(wrong: dict[str, Any]) -> None:
    assert request_problems(wrong)
