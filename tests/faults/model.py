"""A model API on a local socket that speaks the Messages API and stops at the gates of a test. Tools request their
effects here.
"""

import asyncio
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

USAGE = {"input_tokens": 10, "output_tokens": 5}
_TAKEN = {
    "text",
    "tool_use",
    "tool_result",
}  # the types of blocks that this model accepts, like the real model


@dataclass(frozen=True)
class Call:
    """A model call. `words` is the user's first message, and `rounds` is the number of rounds with tool results. Each
    call has its own serial.
    """

    words: str
    rounds: int
    serial: int


@dataclass(frozen=True)
class Gate:
    """A place at which the model, or a tool, stops until the test opens the gate of this name."""

    name: str


@dataclass(frozen=True)
class Use:
    name: str
    input: Mapping[str, Any]


Step = str | Gate | Use


@dataclass
class Model:
    """The server of the model. `script` returns the reply to a call: adjacent strings are one block of text, and a gate
    between two strings keeps the block open. `effects` counts the effects of tools by their `word`. Each effect stops
    at the gate `effect` before its answer.
    """

    script: Callable[[Call], Iterable[Step]]
    url: str = ""
    calls: list[Call] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)
    reached: Counter[tuple[str, str]] = field(default_factory=Counter)
    _gates: defaultdict[tuple[str, str], asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    _open: set[str] = field(default_factory=set)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def open(self, name: str, words: Iterable[str] | None = None) -> None:
        """Opens the gate for these turns, or for all present and future turns."""
        if words is None:
            self._open.add(name)
            words = [of for gate, of in self._gates if gate == name]
        for one in words:
            self._gates[name, one].set()

    def stopped_at(self, name: str) -> int:
        """Returns how often any turn has reached a gate of this name."""
        return sum(count for (gate, _), count in self.reached.items() if gate == name)

    async def until_reached(self, name: str, times: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.stopped_at(name) >= times)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                path, body = await _read(reader)
                if path.startswith("/effect"):
                    await self._take_effect(writer, body.get("input", body)["word"])  # from an HTTP tool, or from `act`
                else:
                    await self._answer(writer, body)
        self._tasks.discard(task)
        writer.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)

    async def _take_effect(self, writer: asyncio.StreamWriter, word: str) -> None:
        self.effects[word] += 1
        await self._stop("effect", word)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()

    async def _answer(self, writer: asyncio.StreamWriter, request: Mapping[str, Any]) -> None:
        call = Call(_words(request), _rounds(request), len(self.calls) + 1)
        self.calls.append(call)
        if unknown := _types(request) - _TAKEN:
            error = {"type": "invalid_request_error", "message": f"blocks of the types {sorted(unknown)}"}
            body = json.dumps({"type": "error", "error": error}).encode()
            head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % len(body) + body)
            await writer.drain()
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nrequest-id: req_%d\r\n"
            b"transfer-encoding: chunked\r\n\r\n" % call.serial
        )
        for item in _message(call, self.script(call)):
            if isinstance(item, Gate):
                await self._stop(item.name, call.words)
            else:
                frame = f"event: {item['type']}\ndata: {json.dumps(item)}\n\n".encode()
                writer.write(b"%x\r\n%b\r\n" % (len(frame), frame))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _stop(self, name: str, words: str) -> None:
        async with self._changed:
            self.reached[name, words] += 1
            self._changed.notify_all()
        gate = self._gates[name, words]
        if name not in self._open:
            await gate.wait()


def _message(call: Call, steps: Iterable[Step]) -> Iterator[dict[str, Any] | Gate]:
    usage = {**USAGE, "output_tokens": 1}
    message = {"id": f"msg_{call.serial}", "type": "message", "role": "assistant", "model": "m", "content": []}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}
    stop_reason, numbers, is_open = "end_turn", itertools.count(), -1
    for step in steps:
        if isinstance(step, str):
            if is_open < 0:
                is_open = next(numbers)
                yield _start(is_open, {"type": "text", "text": ""})
            yield _delta(is_open, {"type": "text_delta", "text": step})
        elif isinstance(step, Gate):
            yield step
        else:
            if is_open >= 0:
                yield _stop(is_open)
            index, is_open = next(numbers), -1
            id = f"toolu_{call.serial}" if stop_reason != "tool_use" else f"toolu_{call.serial}_{index}"
            stop_reason = "tool_use"
            yield _start(index, {"type": "tool_use", "id": id, "name": step.name, "input": {}})
            yield _delta(index, {"type": "input_json_delta", "partial_json": json.dumps(step.input)})
            yield _stop(index)
    if is_open >= 0:
        yield _stop(is_open)
    yield {"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": None}, "usage": USAGE}
    yield {"type": "message_stop"}


def _start(index: int, block: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta(index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def _words(request: Mapping[str, Any]) -> str:
    content = request["messages"][0]["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


def _rounds(request: Mapping[str, Any]) -> int:
    contents = [message["content"] for message in request["messages"]]
    return sum(not isinstance(content, str) and content[0]["type"] == "tool_result" for content in contents)


def _types(request: Mapping[str, Any]) -> set[str]:
    contents = [message["content"] for message in request["messages"]]
    return {block["type"] for content in contents if not isinstance(content, str) for block in content}


async def _read(reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return request.split()[1], json.loads(body)


@asynccontextmanager
async def model_api(script: Callable[[Call], Iterable[Step]]) -> AsyncIterator[Model]:
    model = Model(script)
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0, backlog=1000)
    host, port = server.sockets[0].getsockname()
    model.url = f"http://{host}:{port}"
    try:
        yield model
    finally:
        server.close()
        await model.close()
        await server.wait_closed()
