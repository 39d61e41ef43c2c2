"""Provider tools that the client must run: a call without an answer never ends a turn as complete."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.canned import Answer, Asked, CannedServer, served
from tests.support.harness import Harness
from tests.support.legal import anthropic as anthropic_legal
from tests.support.legal import responses as responses_legal
from turnstream.domain.turns import Turn
from turnstream.extensions.openai.provider import OpenAIResponsesProvider
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.provider import Provider
from turnstream.tools.tool import tool

Json = Mapping[str, Any]

CALLS: dict[str, Json] = {
    "tool_search": {"type": "tool_search_call", "execution": "client", "arguments": {"goal": "weather"}},
    "local_shell": {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}}},
    "shell": {"type": "shell_call", "action": {"commands": ["ls"]}, "environment": {"type": "local"}},
    "apply_patch": {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a.txt"}},
    "computer": {"type": "computer_call", "action": {"type": "screenshot"}, "pending_safety_checks": []},
    "shorten": {"type": "mcp_approval_request", "name": "shorten", "server_label": "zip", "arguments": "{}"},
}
THOUGHT: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}
SAID: Json = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Ok."}],
}
FUNCTION: Json = {"type": "function_call", "id": "fc_1", "call_id": "f", "name": "look", "arguments": "{}"}


class Replies(CannedServer):
    """Gives these answers one after another, and then repeats the last answer."""

    def __init__(self, *answers: bytes) -> None:
        super().__init__()
        self.answers = list(answers)

    def answer_to(self, asked: Asked) -> Answer:
        return Answer(self.answers[min(len(self.requests), len(self.answers)) - 1])


def response(*items: Json) -> bytes:
    done = [
        {"type": "response.output_item.done", "output_index": place, "item": item} for place, item in enumerate(items)
    ]
    last = {"type": "response.completed", "response": {"status": "completed", "output": items}}
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in [*done, last])


def message(stop_reason: str, *blocks: Json) -> bytes:
    whole = {"role": "assistant", "content": blocks, "stop_reason": stop_reason, "usage": {}}
    events = [{"type": "message_start", "message": whole}, {"type": "message_stop"}]
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


async def two_turns(harness: Harness, provider: Provider, **request: Any) -> list[Turn]:
    async with harness.replica(provider, [look]) as replica:
        asked = await harness.ask("Look", tools=[look], **request)
        turn = await harness.finish(replica, asked)
        again = await harness.ask("And?", after=asked, tools=[look], **request)
        return [turn, await harness.finish(replica, again)]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("before", [[], [SAID]])
async def test_a_reply_that_ends_in_a_call_for_the_client_is_an_error_that_names_it(
    harness: Harness, name: str, before: list[Json]
) -> None:
    call = {"id": "x_1", "call_id": "c_1", "status": "completed", **CALLS[name]}
    async with (
        served(Replies(response(THOUGHT, *before, call), response(SAID))) as server,
        OpenAIResponsesProvider("a key", server.url) as provider,
    ):
        turn, after = await two_turns(harness, provider, model="gpt-6-sol")
    assert turn.status == "error"
    assert turn.error is not None
    assert turn.error.type == "client_tool"
    assert f"called {name!r}, a tool of its provider" in turn.error.message
    assert (after.status, after.stop_reason) == ("complete", "end_turn")
    assert [responses_legal.request_problems(json.loads(request.body)) for request in server.requests] == [[], []]


async def test_a_call_for_the_client_beside_one_of_our_tools_does_not_stop_the_turn(harness: Harness) -> None:
    call = {"id": "x_1", "call_id": "c_1", "status": "completed", **CALLS["local_shell"]}
    async with (
        served(Replies(response(THOUGHT, call, FUNCTION), response(SAID))) as server,
        OpenAIResponsesProvider("a key", server.url) as provider,
    ):
        turn, _ = await two_turns(harness, provider, model="gpt-6-sol")
    assert (turn.status, turn.stop_reason) == ("complete", "end_turn")
    assert [responses_legal.request_problems(json.loads(request.body)) for request in server.requests] == [[]] * 3


@pytest.mark.parametrize(
    ("definition", "called"),
    [
        ({"type": "bash_20250124", "name": "bash"}, {"name": "bash", "input": {"command": "ls"}}),
        ({"type": "memory_20250818", "name": "memory"}, {"name": "memory", "input": {"command": "view"}}),
        (
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            {"name": "str_replace_based_edit_tool", "input": {"command": "view", "path": "a.txt"}},
        ),
        (
            {"type": "computer_toolset_20260801"},
            {"name": "screenshot", "toolset_name": "computer", "input": {}},
        ),
    ],
)
async def test_a_tool_of_anthropics_that_clients_run_is_answered_with_an_error(
    harness: Harness, definition: Json, called: Json
) -> None:
    call = {"type": "tool_use", "id": "toolu_1", **called}
    text = {"type": "text", "text": "I cannot."}
    async with (
        served(Replies(message("tool_use", call), message("end_turn", text))) as server,
        AnthropicProvider("a key", server.url) as provider,
    ):
        provider_tools = (json.dumps(definition),)
        turn, _ = await two_turns(harness, provider, model="claude-opus-5-5", provider_tools=provider_tools)
    assert (turn.status, turn.stop_reason) == ("complete", "end_turn")
    bodies = [json.loads(request.body) for request in server.requests]
    assert [problem for body in bodies for problem in anthropic_legal.request_problems(body)] == []
    (result,) = bodies[1]["messages"][-1]["content"]
    assert result["is_error"]
    assert result["content"].startswith(f"There is no tool {called['name']!r}")
    assert result.get("toolset_name") == called.get("toolset_name")
