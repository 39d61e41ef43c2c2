"""Programs that run at the provider and call tools of this server, over several requests."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.canned import Answer, CannedServer, served
from tests.support.canned import Asked as Received
from tests.support.harness import Harness
from tests.support.legal.anthropic import request_problems
from turnstream.domain.blocks import Block
from turnstream.domain.errors import PermanentError
from turnstream.domain.turns import Limits
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.provider import Message, MessageEnded, ModelRequest
from turnstream.tools.tool import tool

Json = Mapping[str, Any]

MODEL = "claude-opus-5-5"
HELLO = (Message("user", (Block(0, 0, 0, "text", "Hello"),)),)
CODE = '{"type":"code_execution_20250825","name":"code_execution"}'
CALLED_BY_CODE = '{"type":"custom","name":"look","allowed_callers":["code_execution_20250825"]}'
PROGRAM = "srvtoolu_1"
JSON = {"content-type": "application/json"}


@dataclass
class Programming(CannedServer):
    """A model that runs one program with `calls` calls, one call in each reply. It refuses the same requests as the
    API, and fails the request number `fails_at`.
    """

    calls: int = 6
    fails_at: int = 0
    problems: list[str] = field(default_factory=list)

    def answer_to(self, asked: Received) -> Answer:
        body = json.loads(asked.body)
        if problems := request_problems(body):
            self.problems += problems
            return _error(400, "invalid_request_error", problems[0])
        blocks = [block for message in body["messages"] for block in message["content"]]
        number = sum(block["type"] == "tool_use" for block in blocks)
        if number == self.fails_at > 0:
            return _error(400, "permission_error", "No.")
        if not number and len(self.requests) == 1:
            return Answer(b"".join(_begun()))
        if body["messages"][-1]["content"][-1]["type"] == "tool_result" and number < self.calls:
            return Answer(_event(type="message_start", message=_continued(number + 1)) + _event(type="message_stop"))
        ended = number == self.calls and not any(block["type"] == "code_execution_tool_result" for block in blocks)
        return Answer(b"".join(_answered(with_result=ended)))


def _error(status: int, kind: str, words: str) -> Answer:
    return Answer(json.dumps({"type": "error", "error": {"type": kind, "message": words}}).encode(), status, JSON)


def _call(number: int) -> Json:
    caller = {"type": "code_execution_20250825", "tool_id": PROGRAM}
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "look", "input": {"page": number}, "caller": caller}


def _continued(number: int) -> Json:
    """Returns a whole message in its first event. Only every second message names the container."""
    container = {"container": {"id": "container_1"}} if number % 2 else {}
    return {"role": "assistant", "content": [_call(number)], "stop_reason": "tool_use", "usage": {}, **container}


def _begun() -> Iterator[bytes]:
    block = {"type": "server_tool_use", "id": PROGRAM, "name": "code_execution", "input": {}}
    yield _event(type="message_start", message={"usage": {"input_tokens": 5, "output_tokens": 1}})
    yield _event(type="content_block_start", index=0, content_block=block)
    delta = {"type": "input_json_delta", "partial_json": '{"code":"await look(1)"}'}
    yield _event(type="content_block_delta", index=0, delta=delta)
    yield _event(type="content_block_stop", index=0)
    yield _event(type="content_block_start", index=1, content_block=_call(1))
    yield _event(type="content_block_stop", index=1)
    container = {"id": "container_1", "expires_at": "2026-12-09T19:30:27Z"}
    yield _event(type="message_delta", delta={"stop_reason": "tool_use", "container": container}, usage={})
    yield _event(type="message_stop")


def _answered(with_result: bool) -> Iterator[bytes]:
    yield _event(type="message_start", message={"usage": {"input_tokens": 5, "output_tokens": 1}})
    if with_result:
        content = {"type": "code_execution_result", "stdout": "6", "stderr": "", "return_code": 0, "content": []}
        block = {"type": "code_execution_tool_result", "tool_use_id": PROGRAM, "content": content}
        yield _event(type="content_block_start", index=0, content_block=block)
        yield _event(type="content_block_stop", index=0)
    yield _event(type="content_block_start", index=1, content_block={"type": "text", "text": "Done."})
    yield _event(type="content_block_stop", index=1)
    yield _event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={})
    yield _event(type="message_stop")


def _event(**data: Any) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


@tool(read_only=True)
async def look(page: int) -> str:
    """Look."""
    return f"page {page}"


@pytest.fixture
async def server() -> AsyncIterator[Programming]:
    async with served(Programming()) as server:
        yield server
        assert server.problems == []


@pytest.fixture
async def provider(server: Programming) -> AsyncIterator[AnthropicProvider]:
    async with AnthropicProvider("a key", server.url) as provider:
        yield provider


async def test_a_program_calls_tools_over_many_requests_and_ends(
    harness: Harness, server: Programming, provider: AnthropicProvider
) -> None:
    async with harness.replica(provider, [look]) as replica:
        limits = Limits(max_rounds=10)
        asked = await harness.ask(
            "Look", limits=limits, tools=[look], model=MODEL, provider_tools=(CODE, CALLED_BY_CODE)
        )
        turn = await harness.finish(replica, asked)
        again = await harness.ask("And?", after=asked, tools=[look], model=MODEL, provider_tools=(CODE,))
        after = await harness.finish(replica, again)
    assert {(each.status, each.stop_reason, each.error) for each in (turn, after)} == {("complete", "end_turn", None)}
    tools = [json.loads(request.body)["tools"] for request in server.requests]
    assert [tool["name"] for tool in tools[0]] == ["look", "code_execution"]
    assert tools[0][0]["allowed_callers"] == ["code_execution_20250825"]
    bodies = [json.loads(request.body) for request in server.requests]
    assert [body.get("container") for body in bodies] == [None, *["container_1"] * 7]
    sent = [block["type"] for message in bodies[6]["messages"] for block in message["content"]]
    assert sent == ["text", "server_tool_use", *["tool_use", "tool_result"] * 6]
    whole = [block["type"] for message in bodies[7]["messages"] for block in message["content"]]
    assert whole == [*sent, "code_execution_tool_result", "text", "text"]


@pytest.mark.parametrize("end", ["stop", "answer", "error", "cancel"])
async def test_the_turn_after_one_that_ended_within_a_program_is_accepted(
    harness: Harness, server: Programming, provider: AnthropicProvider, end: str
) -> None:
    server.calls, server.fails_at = 9, 3 if end == "error" else 0
    limits = Limits(on_max_rounds="answer" if end == "answer" else "stop")

    @tool(name="look", read_only=True)
    async def watched(page: int) -> str:
        """Look."""
        if end == "cancel" and page == 3:
            await replica.cancel(asked)
        return f"page {page}"

    async with harness.replica(provider, [watched]) as replica:
        asked = await harness.ask("Look", limits=limits, tools=[watched], model=MODEL, provider_tools=(CODE,))
        turn = await harness.finish(replica, asked)
        again = await harness.ask("And?", after=asked, limits=limits, tools=[watched], model=MODEL)
        after = await harness.finish(replica, again)
    ends = {"stop": "max_tool_rounds", "answer": "end_turn", "error": "assembled", "cancel": "cancelled"}
    assert turn.stop_reason == ends[end]
    assert (after.status, after.error) == ("complete", None)
    answers = [block.text for block in turn.blocks if block.type == "text"]
    assert ("Done." in answers) == (end == "answer")
    body = json.loads(server.requests[-1].body)
    texts = [block["text"] for message in body["messages"] for block in message["content"]]
    (told,) = [text for text in texts if "A program" in text]
    assert told.startswith("A program of yours was stopped before its end. It had made these calls:\n- look")
    assert '- look {"page": 1}: page 1' in told


class Expiring(CannedServer):
    """A provider that refuses every request that names a container."""

    refusal: Answer

    def answer_to(self, asked: Received) -> Answer:
        return self.refusal if "container" in json.loads(asked.body) else Answer(b"".join(_answered(False)))


@pytest.mark.parametrize(
    "refusal",
    [
        _error(400, "invalid_request_error", "Container container_1 has expired."),
        _error(404, "not_found_error", "container: container_1 was not found"),
        _error(500, "api_error", "Internal server error"),
    ],
    ids=["expired", "unknown", "failure"],
)
async def test_a_request_with_the_container_of_an_earlier_turn_is_sent_again_without_one_that_expired(
    refusal: Answer,
) -> None:
    earlier = json.dumps({"container": {"id": "container_1"}})
    request = ModelRequest(MODEL, HELLO, provider_tools=(CODE,), earlier_data=earlier)
    async with served(Expiring()) as server, AnthropicProvider("a key", server.url) as provider:
        server.refusal = refusal
        parts = [part async for batch in provider.stream(request) for part in batch]
        assert MessageEnded() in parts
        assert [json.loads(asked.body).get("container") for asked in server.requests] == ["container_1", None]


@pytest.mark.parametrize("other", [{"provider_tools": ()}, {"resume_data": '{"container":{"id":"container_1"}}'}])
async def test_a_failure_that_no_earlier_container_can_explain_is_raised(other: dict[str, Any]) -> None:
    earlier = json.dumps({"container": {"id": "container_1"}})
    given: dict[str, Any] = {"provider_tools": (CODE,), "earlier_data": earlier, **other}
    async with served(CannedServer()) as server, AnthropicProvider("a key", server.url) as provider:
        server.answer = _error(400, "invalid_request_error", "Container container_1 has expired.")
        with pytest.raises(PermanentError, match="has expired"):
            await anext(provider.stream(ModelRequest(MODEL, HELLO, **given)))
        assert len(server.requests) == 1
