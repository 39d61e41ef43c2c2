"""A model API on a local socket. Like a model, it answers only from the messages of the request."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from aiohttp import web

from tests.support.legal.anthropic import request_problems

Json = dict[str, Any]


@dataclass(frozen=True)
class Thought:
    text: str


@dataclass(frozen=True)
class Use:
    name: str
    input: Mapping[str, Any]


@dataclass(frozen=True)
class Whole:
    """A complete block of a tool that the provider runs."""

    block: Mapping[str, Any]


@dataclass(frozen=True)
class Silence:
    """The model sends nothing more, and keeps the connection open."""


Said = str | Thought | Use | Whole | Silence


@dataclass(frozen=True)
class Answered:
    """A tool call of the model, and its result."""

    name: str
    input: Json
    text: str
    is_error: bool

    @property
    def data(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True)
class Conversation:
    """The model's view of a request: the user's last message, the calls after it, and the offered tools."""

    question: str
    answered: tuple[Answered, ...]
    offered: frozenset[str]


Mind = Callable[[Conversation], Iterable[Said]]


@dataclass
class Model:
    """The server of the model. It refuses the same requests as the provider. `requests` has the received bodies."""

    mind: Mind
    url: str = ""
    requests: list[Json] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if problems := request_problems(body):
            return _refusal("; ".join(problems))
        try:
            said = list(self.mind(conversation_of(body)))
        except (AssertionError, LookupError, ValueError) as error:  # a mistake of the test, which must not be retried
            return _refusal(repr(error))
        serial = len(self.requests)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "request-id": f"req_{serial}"})
        await response.prepare(request)
        for event in _message(serial, said):
            if event["type"] == "silence":
                await asyncio.Event().wait()
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return response

    def check_prefixes(self) -> None:
        """Checks that each request begins with the previous request, byte for byte."""
        for before, after in pairwise(self.requests):
            assert (before["tools"], before.get("system")) == (after["tools"], after.get("system"))
            said = _flattened(before)
            assert _flattened(after)[: len(said)] == said


def _refusal(message: str) -> web.Response:
    error = {"type": "invalid_request_error", "message": message}
    return web.json_response({"type": "error", "error": error}, status=400)


@asynccontextmanager
async def model_api(mind: Mind) -> AsyncIterator[Model]:
    model = Model(mind)
    async with serving("/v1/messages", model.answer) as model.url:
        yield model


@asynccontextmanager
async def serving(path: str, handler: Callable[[web.Request], Any]) -> AsyncIterator[str]:
    """Serves POSTs to `path`, and yields the address. Requests that hang are dropped at the end."""
    app = web.Application()
    app.router.add_post(path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)  # 0 would mean no limit
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


# --- what the model reads --------------------------------------------------------------------------------------------


def conversation_of(body: Mapping[str, Any]) -> Conversation:
    blocks = [block for message in body["messages"] for block in message["content"]]
    spoken = max(place for place, block in enumerate(blocks) if block["type"] == "text" and _is_user(body, block))
    since = blocks[spoken + 1 :]
    results = {block["tool_use_id"]: block for block in since if block["type"] == "tool_result"}
    answered = [_answered(block, results[block["id"]]) for block in since if block["type"] == "tool_use"]
    offered = frozenset(tool["name"] for tool in body.get("tools", ()))
    return Conversation(blocks[spoken]["text"], tuple(answered), offered)


def _is_user(body: Mapping[str, Any], block: Json) -> bool:
    return any(
        block is mine for message in body["messages"] if message["role"] == "user" for mine in message["content"]
    )


def _answered(call: Json, result: Json) -> Answered:
    return Answered(call["name"], call["input"], result.get("content", ""), result.get("is_error", False))


def _flattened(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns roles and blocks as they were written, without cache marks, which are not content."""
    return [
        (message["role"], json.dumps({name: value for name, value in block.items() if name != "cache_control"}))
        for message in body["messages"]
        for block in message["content"]
    ]


# --- what the model says ---------------------------------------------------------------------------------------------

_USAGE = {"input_tokens": 10, "output_tokens": 5}


def _message(serial: int, said: Sequence[Said]) -> Iterator[Json]:
    stop_reason = "tool_use" if any(isinstance(one, Use) for one in said) else "end_turn"
    message = {"id": f"msg_{serial}", "type": "message", "role": "assistant", "model": "m", "content": []}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "usage": _USAGE}}
    for index, one in enumerate(said):
        if isinstance(one, Silence):
            yield {"type": "silence"}
            return
        block, deltas = _block(one, f"toolu_{serial}_{index}")
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": None}, "usage": _USAGE}
    yield {"type": "message_stop"}


def _block(one: str | Thought | Use | Whole, id: str) -> tuple[Mapping[str, Any], list[Json]]:
    match one:
        case str():
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in _pieces(one)]
        case Thought(text):
            deltas: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(text)]
            deltas.append({"type": "signature_delta", "signature": f"signed {id}"})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case Use(name, input):
            pieces = _pieces(json.dumps(input))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            return {"type": "tool_use", "id": id, "name": name, "input": {}}, deltas
        case Whole(block):
            return block, []


def _pieces(text: str) -> Iterator[str]:
    return (text[place : place + 7] for place in range(0, len(text), 7))
