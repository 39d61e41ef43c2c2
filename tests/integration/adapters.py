"""The adapters to real APIs on a local socket, each with the same short answer in the format of its API."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pytest

from tests.support.canned import Answer, CannedServer, canned_server
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ProviderError
from turnstream.extensions.direct_calls.calls import DirectCalls
from turnstream.extensions.gemini.provider import GeminiProvider
from turnstream.extensions.openai.provider import OpenAIChatProvider, OpenAIResponsesProvider
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.provider import BlockText, Message, ModelRequest, Part

Adapter = AnthropicProvider | OpenAIChatProvider | OpenAIResponsesProvider

REQUEST = ModelRequest("a-model", (Message("user", (Block(0, 0, 0, "text", "Hello"),)),))
JSON = {"content-type": "application/json"}


def event(**data: Any) -> bytes:
    """An event in the form of Anthropic and the Responses API."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """A chunk in the form of Chat Completions."""
    data = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return f"data: {json.dumps(data)}\n\n".encode()


def gemini(*parts: dict[str, Any], **members: Any) -> bytes:
    """An event in the form of the Gemini API."""
    content = {"content": {"role": "model", "parts": [*parts]}} if parts else {}
    data = {"candidates": [{**content, **members, "index": 0}], "usageMetadata": {"promptTokenCount": 3}}
    return f"data: {json.dumps(data)}\r\n\r\n".encode()


@dataclass(frozen=True)
class Api:
    """The stream of one API. `begun` and `said` begin an answer; `said` has the text "Hi"; `end` is the last event. If
    `ends` is false, the answer may continue after `end`.
    """

    make: Callable[..., Adapter]
    path: str
    begun: bytes
    said: bytes
    end: bytes
    request_id: str = "x-request-id"
    key: tuple[str, str] = ("authorization", "Bearer a key")
    ends: bool = True


def _response(status: str, **members: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, **members}


SDK_APIS = {
    "anthropic": Api(
        partial(AnthropicProvider, make_calls=DirectCalls),
        "/v1/messages",
        event(type="message_start", message={"usage": {"input_tokens": 3}}),
        event(type="content_block_start", index=0, content_block={"type": "text", "text": ""})
        + event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"}),
        event(type="message_stop"),
        "request-id",
    ),
    "openai-chat": Api(
        partial(OpenAIChatProvider, make_calls=DirectCalls),
        "/chat/completions",
        chunk({"role": "assistant"}),
        chunk({"content": "Hi"}),
        chunk({}, "stop") + b"data: [DONE]\n\n",
    ),
    "openai-responses": Api(
        partial(OpenAIResponsesProvider, make_calls=DirectCalls),
        "/responses",
        event(type="response.created", response=_response("in_progress")),
        event(type="response.output_item.added", output_index=0, item={"type": "message", "id": "msg_1"})
        + event(type="response.output_text.delta", output_index=0, content_index=0, delta="Hi"),
        event(type="response.completed", response=_response("completed", usage={"input_tokens": 3})),
    ),
}
# Gemini's adapter has no SDK below it. Of the other APIs, the table has only the parts that this module needs.
APIS = {
    **SDK_APIS,
    "gemini": Api(
        cast("Callable[..., Adapter]", GeminiProvider),
        "/models/a-model:streamGenerateContent?alt=sse",
        gemini({"text": "", "thought": True}),
        gemini({"text": "Hi"}),
        gemini(finishReason="STOP"),
        key=("x-goog-api-key", "a key"),
        ends=False,
    ),
}


@dataclass
class Talk:
    """An adapter, and the server that answers it."""

    api: Api
    server: CannedServer
    provider: Adapter

    def answers(self, body: bytes, **how: Any) -> None:
        self.server.answer = Answer(body, **how)

    async def heard(self) -> list[Part]:
        return [part async for parts in self.provider.stream(REQUEST) for part in parts]

    async def failure(self, told: list[Part] | None = None) -> ProviderError:
        with pytest.raises(ProviderError) as raised:
            await self._listen([] if told is None else told)
        return raised.value

    async def _listen(self, told: list[Part]) -> None:
        async for parts in self.provider.stream(REQUEST):
            told += parts

    @asynccontextmanager
    async def impatient(self, read_timeout: float) -> AsyncIterator["Talk"]:
        async with self.api.make("a key", self.server.url, read_timeout=read_timeout) as provider:
            yield replace(self, provider=provider)


@asynccontextmanager
async def talking(name: str) -> AsyncIterator[Talk]:
    api = APIS[name]
    async with canned_server() as server, api.make("a key", server.url) as provider:
        yield Talk(api, server, provider)


def texts(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, BlockText))
