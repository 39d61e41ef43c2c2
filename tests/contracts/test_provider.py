"""The contract between providers and the engine: one suite, run for each provider."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.canned import Answer, CannedServer, canned_server
from tests.support.model_apis import TABLES
from turnstream.domain.blocks import Block
from turnstream.domain.errors import PermanentError, ProviderError, TransientError
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.demo.provider import DemoProvider
from turnstream.extensions.gemini.provider import GeminiProvider
from turnstream.extensions.openai.provider import OpenAIChatProvider, OpenAIProvider, OpenAIResponsesProvider
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.provider import (
    BlockClosed,
    BlockOpened,
    BlockText,
    Message,
    MessageDelta,
    MessageEnded,
    MessageStarted,
    ModelRequest,
    Part,
    Provider,
)
from turnstream.scripted import ScriptedProvider, message_of, text, thinking, tool_use
from turnstream_lab.provider_checks import CHECKS, answer_of, answers_start_and_end, calls_are_whole, fails_with
from turnstream_lab.recordings import _KEYS

TOOLS = tuple(ToolSpec(name, "…", '{"type":"object"}') for name in ("doc_search", "doc_tree", "doc_view"))
REQUEST = ModelRequest(
    "claude-opus-5-5",
    (Message("user", (Block(0, 0, 0, "text", "When does the rule of twelfths hold?"),)),),
    tools=TOOLS,
)
REPLY = (thinking("Let me ", "look."), text("I look ", "it up."), tool_use("doc_search", {"query": "rule"}, "toolu_1"))


STARTED = MessageStarted({"input_tokens": 1})
STOP = MessageDelta("end_turn", {"output_tokens": 1})


@dataclass
class Parts:
    """A provider that always answers with these parts."""

    parts: Sequence[Part]
    name: str = "parts"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        yield self.parts


@dataclass
class Fake:
    """A provider, and a function that makes its next call fail, either before or after the first parts."""

    provider: Provider
    fail: Callable[[ProviderError, bool], None] | None = None
    server: CannedServer | None = None


@asynccontextmanager
async def scripted() -> AsyncIterator[Fake]:
    replies: list[Sequence[Any]] = []
    provider = ScriptedProvider(lambda _: replies.pop() if replies else message_of(*REPLY))

    def fail(error: ProviderError, late: bool) -> None:
        replies.append([*(list(message_of(*REPLY))[:4] if late else []), error])

    yield Fake(provider, fail)


@asynccontextmanager
async def anthropic() -> AsyncIterator[Fake]:
    async with canned_server() as server, AnthropicProvider("a key", server.url) as provider:
        server.answer = Answer(stream_of(*REPLY), sizes=[50])

        def fail(error: ProviderError, late: bool) -> None:
            said = {"type": "error", "error": {"type": error.type, "message": error.message}}
            if late:
                server.answer = Answer(stream_of(*REPLY)[:900].rsplit(b"event", 1)[0] + event(said))
            else:
                headers = {"content-type": "application/json"}
                status = 529 if isinstance(error, TransientError) else 401
                server.answer = Answer(json.dumps(said).encode(), status, headers)

        yield Fake(provider, fail, server)


@asynccontextmanager
async def openai(make: Callable[..., OpenAIProvider], reply: bytes) -> AsyncIterator[Fake]:
    async with canned_server() as server, make("a key", server.url) as provider:
        server.answer = Answer(reply, sizes=[50])

        def fail(error: ProviderError, late: bool) -> None:
            said = {"error": {"type": error.type, "message": error.message, "param": None, "code": None}}
            if late:
                server.answer = Answer(reply[:600].rsplit(b"data", 1)[0] + chunk(said))
            else:
                headers = {"content-type": "application/json"}
                status = 503 if isinstance(error, TransientError) else 401
                server.answer = Answer(json.dumps(said).encode(), status, headers)

        yield Fake(provider, fail, server)


def openai_chat() -> AbstractAsyncContextManager[Fake]:
    return openai(OpenAIChatProvider, chat_stream_of(*REPLY))


def openai_responses() -> AbstractAsyncContextManager[Fake]:
    return openai(OpenAIResponsesProvider, responses_stream_of(*REPLY))


@asynccontextmanager
async def gemini() -> AsyncIterator[Fake]:
    reply = gemini_stream_of(*REPLY)
    async with canned_server() as server, GeminiProvider("a key", server.url) as provider:
        server.answer = Answer(reply, sizes=[50])

        def fail(error: ProviderError, late: bool) -> None:
            said = {"error": {"type": error.type, "message": error.message}}
            if late:
                server.answer = Answer(reply.rpartition(b"data: ")[0] + chunk(said))
            else:
                status = 503 if isinstance(error, TransientError) else 401
                server.answer = Answer(json.dumps(said).encode(), status, {"content-type": "application/json"})

        yield Fake(provider, fail, server)


def gemini_stream_of(*blocks: Sequence[Part], with_ids: bool = False) -> bytes:
    body = b""
    for opened, *parts in blocks:
        assert isinstance(opened, BlockOpened)
        texts = [part.text for part in parts if isinstance(part, BlockText)]
        if opened.type == "tool_use":
            call = {"name": opened.name, "args": json.loads("".join(texts))}
            call |= {"id": opened.tool_use_id} if with_ids else {}
            body += candidate({"functionCall": call, "thoughtSignature": "c2ln"})
        else:
            thought = {"thought": True} if opened.type == "thinking" else {}
            body += b"".join(candidate({"text": text, **thought}) for text in texts)
    return body + candidate({"text": ""}, finishReason="STOP")


def candidate(part: dict[str, Any], **members: Any) -> bytes:
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5}
    return chunk({"candidates": [{"content": {"parts": [part]}, **members}], "usageMetadata": usage})


@asynccontextmanager
async def demo() -> AsyncIterator[Fake]:
    yield Fake(DemoProvider(delay=0))


def stream_of(*blocks: Sequence[Part]) -> bytes:
    usage = {"input_tokens": 10, "output_tokens": 1}
    body = event({"type": "message_start", "message": {"content": [], "stop_reason": None, "usage": usage}})
    kinds = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
    for index, (opened, *parts, _) in enumerate(blocks):
        assert isinstance(opened, BlockOpened)
        shell = json.loads(opened.data or '{"type":"text","text":""}')
        body += event({"type": "content_block_start", "index": index, "content_block": shell})
        for part in parts:
            member = kinds[opened.type]
            kind = "input_json" if member == "partial_json" else member
            delta = {"type": f"{kind}_delta", member: part.text} if isinstance(part, BlockText) else SIGNED
            body += event({"type": "content_block_delta", "index": index, "delta": delta})
        body += event({"type": "content_block_stop", "index": index})
    body += event({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}})
    return body + event({"type": "message_stop"})


SIGNED = {"type": "signature_delta", "signature": "scripted"}


def event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def chat_stream_of(*blocks: Sequence[Part], numbered: bool = False) -> bytes:
    members = {"text": "content", "thinking": "reasoning_content"}
    body = b""
    for place, (opened, *parts) in enumerate(blocks):
        assert isinstance(opened, BlockOpened)
        at = {"index": place if numbered else 0}
        if opened.type == "tool_use":
            body += delta({"tool_calls": [{**at, "id": opened.tool_use_id, "function": {"name": opened.name}}]})
        for part in parts:
            if isinstance(part, BlockText) and opened.type == "tool_use":
                body += delta({"tool_calls": [{**at, "function": {"arguments": part.text}}]})
            elif isinstance(part, BlockText):
                body += delta({members[opened.type]: part.text})
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return body + delta({}, "tool_calls") + chunk({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"


def delta(said: dict[str, Any], finish: str | None = None) -> bytes:
    return chunk({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": said, "finish_reason": finish}]})


def responses_stream_of(*blocks: Sequence[Part]) -> bytes:
    body = b""
    for place, (opened, *parts, _) in enumerate(blocks):
        assert isinstance(opened, BlockOpened)
        item, kind = ITEMS[opened.type]
        whole = {**item, "call_id": opened.tool_use_id, "name": opened.name}
        body += event({"type": "response.output_item.added", "output_index": place, "item": whole})
        for part in parts:
            if isinstance(part, BlockText):
                body += event({"type": f"response.{kind}.delta", "output_index": place, "delta": part.text})
                if opened.type == "tool_use":
                    whole["arguments"] = whole.get("arguments", "") + part.text
        body += event({"type": "response.output_item.done", "output_index": place, "item": whole})
    response = {"object": "response", "status": "completed", "usage": {"input_tokens": 10, "output_tokens": 5}}
    return body + event({"type": "response.completed", "response": response})


ITEMS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"type": "message"}, "output_text"),
    "thinking": ({"type": "reasoning", "id": "rs_1", "encrypted_content": "e"}, "reasoning_summary_text"),
    "tool_use": ({"type": "function_call"}, "function_call_arguments"),
}


def chunk(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


FAKES = {
    "anthropic": anthropic,
    "gemini": gemini,
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "scripted": scripted,
    "demo": demo,
}


@pytest.fixture(params=FAKES)
async def fake(request: pytest.FixtureRequest) -> AsyncIterator[Fake]:
    make: Callable[[], AbstractAsyncContextManager[Fake]] = FAKES[request.param]
    async with make() as fake:
        yield fake


async def test_a_provider_has_a_name(fake: Fake) -> None:
    assert any(name.startswith(fake.provider.name) for name in FAKES)


def test_every_api_has_a_fake() -> None:
    assert TABLES.keys() <= FAKES.keys()


@pytest.mark.parametrize("fake", TABLES, indirect=True)
async def test_the_key_is_in_a_header_that_recordings_leave_out(fake: Fake) -> None:
    await answer_of(fake.provider, REQUEST)
    assert fake.server is not None
    (asked,) = fake.server.requests
    holding = {name.lower() for name, value in asked.headers.items() if "a key" in value}
    assert holding
    assert holding <= set(_KEYS)
    assert "a key" not in asked.target


async def test_an_answer_starts_says_something_and_ends(fake: Fake) -> None:
    accumulator, blocks = await answer_of(fake.provider, REQUEST)
    assert accumulator.started
    assert accumulator.ended
    assert accumulator.stop_reason == "tool_use"
    assert accumulator.usage["output_tokens"] >= 5
    assert [block.type for block in blocks][:2] == ["thinking", "text"]
    assert not any(block.interrupted for block in blocks)
    assert not accumulator.unknown


async def test_thinking_is_signed_and_calls_have_an_id_a_name_and_a_json_object_as_input(fake: Fake) -> None:
    _, blocks = await answer_of(fake.provider, REQUEST)
    for block in blocks:
        if block.type == "thinking":
            assert json.loads(block.data or "{}")["signature"]
    calls = [block for block in blocks if block.is_call]
    assert calls
    for call in calls:
        assert call.tool_use_id
        assert call.name in {tool.name for tool in TOOLS}
        assert isinstance(json.loads(call.text), dict)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_check_of_the_kit_holds(fake: Fake, check: Callable[[Provider, ModelRequest], Awaitable[None]]) -> None:
    await check(fake.provider, REQUEST)


@pytest.mark.parametrize(
    ("parts", "promise"),
    [
        ([BlockOpened(0, "text"), BlockClosed(0)], "must begin with MessageStarted"),
        ([STARTED, BlockOpened(0, "text"), BlockClosed(0), STOP], "must end with MessageEnded"),
        ([STARTED, BlockOpened(0, "text"), BlockClosed(0), MessageEnded()], "name the reason"),
        ([STARTED, *tool_use("other", {}, "a"), STOP, MessageEnded()], "no tool of the request"),
        (
            [STARTED, BlockOpened(0, "tool_use", None, "[]", "a", "doc_tree"), BlockClosed(0), STOP, MessageEnded()],
            "must be a JSON object",
        ),
    ],
    ids=["start", "end", "reason", "name", "input"],
)
async def test_a_broken_promise_has_a_sentence(parts: Sequence[Part], promise: str) -> None:
    check = calls_are_whole if "tool" in promise or "JSON" in promise else answers_start_and_end
    with pytest.raises(AssertionError, match=promise):
        await check(Parts(parts), REQUEST)


@pytest.mark.parametrize("fake", ["anthropic", "gemini", "openai-chat", "openai-responses", "scripted"], indirect=True)
@pytest.mark.parametrize(
    "error", [TransientError("overloaded_error", "Overloaded"), PermanentError("authentication_error", "no such key")]
)
@pytest.mark.parametrize("late", [False, True], ids=["before the first part", "after some parts"])
async def test_a_failure_has_class_type_and_message_and_comes_after_all_parts(
    fake: Fake, error: ProviderError, late: bool
) -> None:
    assert fake.fail is not None
    fake.fail(error, late)
    await fails_with(fake.provider, REQUEST, error, late=late)


# Two calls with the same id, as sent by defective servers.
REPEATED = (
    tool_use("doc_search", {"query": "rule"}, "a"),
    tool_use("doc_search", {"query": "tide"}, "a"),
    tool_use("doc_tree", {}, "b"),
)


WHOLE_CALLS = delta(
    {
        "tool_calls": [
            {"id": id, "function": {"name": name, "arguments": json.dumps(input)}}
            for id, name, input in (
                ("a", "doc_search", {"query": "rule"}),
                ("a", "doc_search", {"query": "tide"}),
                ("b", "doc_tree", {}),
            )
        ]
    },
    "tool_calls",
)


@pytest.mark.parametrize(
    ("make", "body"),
    [
        (AnthropicProvider, stream_of(*REPEATED)),
        (GeminiProvider, gemini_stream_of(*REPEATED, with_ids=True)),
        (OpenAIChatProvider, chat_stream_of(*REPEATED, numbered=True)),
        (OpenAIChatProvider, WHOLE_CALLS),
        (OpenAIResponsesProvider, responses_stream_of(*REPEATED)),
        (None, b""),
    ],
    ids=[
        "anthropic",
        "gemini",
        "openai-chat",
        "openai-chat without numbers",
        "openai-responses",
        "scripted",
    ],
)
async def test_calls_with_one_id_are_several_calls_each_with_an_id_of_its_own(
    make: Callable[..., Any] | None, body: bytes
) -> None:
    if make is None:
        accumulator, blocks = await answer_of(ScriptedProvider([message_of(*REPEATED)]), REQUEST)
    else:
        async with canned_server() as server, make("a key", server.url) as provider:
            server.answer = Answer(body, sizes=[50])
            accumulator, blocks = await answer_of(provider, REQUEST)
    assert accumulator.ended
    calls = [(block.name, json.loads(block.text)) for block in blocks if block.is_call]
    assert calls == [("doc_search", {"query": "rule"}), ("doc_search", {"query": "tide"}), ("doc_tree", {})]
    first, second, third = ids = [block.tool_use_id for block in blocks]
    assert (first, third) == ("a", "b")
    assert second
    assert len(set(ids)) == 3
    assert all(json.loads(block.data)["id"] == block.tool_use_id for block in blocks if block.data)
