"""The demo provider, for a server without keys: an adapter like any other, but its API is in this process.

The API returns bytes in the form of Anthropic's API. So these calls can be recorded, replayed and disturbed like calls
of real models.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

import httpx2
import msgspec

from turnstream.extensions.demo.commands import Failure
from turnstream.extensions.demo.script import Answer, answer_of
from turnstream.kit.offload import offload
from turnstream.libraries.providers.anthropic.render import render
from turnstream.libraries.providers.anthropic.wire import AnthropicWire
from turnstream.libraries.providers.transport.failures import connection_error, provider_error
from turnstream.libraries.providers.transport.http import Adapter, InterceptingTransport
from turnstream.libraries.providers.transport.response import ModelResponse, open_response
from turnstream.libraries.providers.transport.wire import Wire
from turnstream.llm.interceptor import Interceptor
from turnstream.llm.provider import (
    MAX_EVENT_BYTES,
    BlockClosed,
    BlockData,
    BlockOpened,
    BlockText,
    MessageDelta,
    MessageStarted,
    ModelRequest,
    Part,
)
from turnstream.scripted import message_of

DEMO = "demo"
_URL: Final = "http://demo.invalid/v1/messages"
_REQUEST: Final = "model_request"  # name of the HTTP request's extension that holds the engine's request
_REFUSALS: Final[Mapping[Failure, tuple[int, str, str]]] = {
    "rate_limit": (429, "rate_limit_error", "There were too many requests."),
    "overloaded": (529, "overloaded_error", "The demo is overloaded."),
    "server_error": (500, "api_error", "The demo has an internal error."),
    "bad_request": (400, "invalid_request_error", "The demo refuses this request."),
    "too_long": (413, "request_too_large", "The prompt is too long."),
}
_MOST_COUNTED: Final = 1000  # maximum number of turns whose failures are counted


class DemoProvider(Adapter):
    """Calls the demo. `delay` is the pause before each delta, in seconds."""

    name = "demo"

    def __init__(self, delay: float = 0.015, interceptors: Sequence[Interceptor] = ()) -> None:
        self._max_event_bytes = MAX_EVENT_BYTES
        self._client = httpx2.AsyncClient(transport=_DemoApi(delay))
        if interceptors:
            self._client = httpx2.AsyncClient(transport=InterceptingTransport(self._client, interceptors))

    async def aclose(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncIterator[tuple[ModelResponse, Wire]]:
        body = await offload(request.size, render, request)
        sent = httpx2.Request("POST", _URL, content=body, extensions={_REQUEST: request})
        try:
            response = await self._client.send(sent, stream=True)
            try:
                if response.is_error:
                    raise provider_error(
                        _decoded(await response.aread()), response.status_code, headers=response.headers
                    )
                async with open_response(response) as opened:
                    yield opened, AnthropicWire(response.headers.get("request-id"))
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            raise connection_error(error) from error


def _decoded(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode(errors="replace")


class _DemoApi(httpx2.AsyncBaseTransport):
    """The API of the demo. It counts the failed calls of each turn, so that only as many calls fail as the message asks
    for.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._failures: Counter[UUID] = Counter()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        asked: ModelRequest = request.extensions[_REQUEST]
        answer = await offload(asked.size, answer_of, asked)
        failure = answer.failure if self._fails(asked, answer.times) else None
        if failure == "refused":
            raise httpx2.ConnectError("the demo was asked to refuse the connection")
        if failure is not None and (refusal := _REFUSALS.get(failure)):
            status, type, message = refusal
            headers = {"content-type": "application/json"} | ({"retry-after": "1"} if status == 429 else {})
            error = msgspec.json.encode({"type": "error", "error": {"type": type, "message": message}})
            return httpx2.Response(status, headers=headers, content=_unread(error), request=request)
        usage = {"input_tokens": len(request.content) // 4, "output_tokens": 1}
        events = await offload(asked.size, _events_of, answer, usage)
        if failure is not None:
            events = events[: len(events) // 2]
        body = self._body(events, failure)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body, request=request)

    def _fails(self, asked: ModelRequest, times: int | None) -> bool:
        if times is None or asked.call is None:
            return times is None
        if len(self._failures) > _MOST_COUNTED:
            self._failures.clear()
        self._failures[asked.call.turn] += 1
        return self._failures[asked.call.turn] <= times

    async def _body(self, events: Iterable[Mapping[str, Any]], failure: Failure | None) -> AsyncIterator[bytes]:
        for event in events:
            if self._delay and event["type"] == "content_block_delta" and "signature" not in event["delta"]:
                await asyncio.sleep(self._delay)
            yield b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(event))
        match failure:
            case "reset":
                raise httpx2.ReadError("the demo was asked to lose the connection")
            case "error_event":
                yield b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Demo."}}\n\n'
            case "silence":
                await asyncio.Event().wait()
            case _:
                pass


def _events_of(answer: Answer, usage: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(_events(message_of(*answer.blocks, usage={"output_tokens": answer.tokens}), usage))


async def _unread(body: bytes) -> AsyncIterator[bytes]:
    """Streams the body as a network would: interceptors must receive a body in parts."""
    yield body


def _events(batches: Iterable[Sequence[Part]], usage: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the parts of a scripted message as events of the Anthropic API."""
    deltas: dict[int, tuple[str, str]] = {}
    for part in (part for parts in batches for part in parts):
        match part:
            case MessageStarted():
                yield {"type": "message_start", "message": {"type": "message", "usage": usage}}
            case BlockOpened():
                match part.type:
                    case "tool_use":
                        deltas[part.key] = ("input_json_delta", "partial_json")
                    case "thinking":
                        deltas[part.key] = ("thinking_delta", "thinking")
                    case _:
                        deltas[part.key] = ("text_delta", "text")
                block = msgspec.json.decode(part.data) if part.data else {"type": "text", "text": ""}
                yield {"type": "content_block_start", "index": part.key, "content_block": block}
            case BlockText():
                kind, member = deltas[part.key]
                yield {"type": "content_block_delta", "index": part.key, "delta": {"type": kind, member: part.text}}
            case BlockData():
                delta = {"type": "signature_delta", "signature": part.value}
                yield {"type": "content_block_delta", "index": part.key, "delta": delta}
            case BlockClosed():
                yield {"type": "content_block_stop", "index": part.key}
            case MessageDelta():
                yield {"type": "message_delta", "delta": {"stop_reason": part.stop_reason}, "usage": part.usage}
            case _:
                yield {"type": "message_stop"}
