"""Tests the checker itself: it accepts valid requests, and finds the problems of invalid requests."""

from typing import Any

import pytest

from tests.support.legal.openai import request_problems

USER = {"role": "user", "content": "Hello"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "x"}


def body(*messages: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"messages": list(messages), "stream": True, **members}


def test_a_legal_request_has_no_problems() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    system = {"role": "system", "content": "Be kind."}
    said = {"role": "assistant", "content": "Hi"}
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}],
    }
    assert request_problems(body(system, USER, said, parts, CALLS, RESULT, tools=tools, tool_choice="auto")) == []


@pytest.mark.parametrize(
    "wrong",
    [
        body(),
        body(CALLS, RESULT),
        body(USER, {"role": "assistant", "content": "Hi"}),
        body(USER, USER),
        body(USER, {"role": "system", "content": "x"}, USER),
        body({"role": "user", "content": " "}),
        body({"role": "user", "content": []}),
        body({"role": "user", "content": [{"type": "video"}]}),
        body({"role": "user", "content": "x", "name": "y"}),
        body(USER, {"role": "assistant", "content": "x", "reasoning": "y"}, USER),
        body(USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER),
        body(USER, CALLS),
        body(USER, CALLS, USER),
        body(USER, CALLS, RESULT, RESULT),
        body(USER, RESULT),
        body(USER, {"role": "assistant", "tool_calls": [CALL, CALL]}, RESULT, RESULT),
        body(USER, {"role": "assistant", "tool_calls": [{**CALL, "id": ""}]}, {**RESULT, "tool_call_id": ""}),
        body(
            USER,
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f g", "arguments": "{}"}}]},
            RESULT,
        ),
        body(
            USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "1"}}]}, RESULT
        ),
        body(USER, tool_choice="auto"),
        body(USER, tools=[{"type": "function", "function": {"name": ""}}]),
        {"messages": [USER]},
    ],
)
def test_an_illegal_request_has_problems(wrong: dict[str, Any]) -> None:
    assert request_problems(wrong)
