"""A provider with OpenAI's Responses API on a local socket. It completes and stores answers that nobody reads
(`background`). A test writes each answer event by event, and counts the billed answers.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Json = dict[str, Any]


@dataclass
class PaidAnswer:
    """The answer to one billed request. The events of the answer are numbered from 0."""

    id: str
    request: Json
    events: list[Json] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    is_stopped: bool = False
    left: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    readers: set[asyncio.Transport] = field(default_factory=set)

    def send(self, *events: Json) -> None:
        for event in events:
            self.events.append({**event, "sequence_number": len(self.events)})
        self._notify()

    def say(self, *words: str) -> None:
        self.send(*({"type": "response.output_text.delta", "item_id": "msg_1", "delta": word} for word in words))

    def begin(self) -> None:
        self.send(
            {"type": "response.created", "response": {"id": self.id, "object": "response", "status": "queued"}},
            {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "msg_1"}},
        )

    def call(self, id: str, name: str = "look", arguments: str = "{}") -> None:
        item = {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": arguments}
        self.send({"type": "response.output_item.done", "output_index": 1, "item": item})

    def finish(self, status: str = "completed", **members: Any) -> None:
        usage = {"input_tokens": 100, "output_tokens": 7, "total_tokens": 107}
        response = {"id": self.id, "object": "response", "status": status, "usage": usage, **members}
        self.send({"type": f"response.{status}", "response": response})
        self.is_over = True
        self._notify()

    def cut(self) -> None:
        """Breaks the connections of all readers. The answer continues."""
        for reader in self.readers:
            reader.abort()

    def stop(self) -> None:
        """Stops the answer, and ends the streams of all readers."""
        self.events.clear()
        self.is_over = self.is_stopped = True
        self._notify()

    def leave(self) -> None:
        """Properly ends the streams of all present readers. The answer continues."""
        self.left += 1
        self._notify()

    def _notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


@dataclass
class ResponsesServer:
    """The server. `paid` has the answers in the order of their requests; `reads` has the queries that read stored
    answers.
    """

    url: str = ""
    paid: list[PaidAnswer] = field(default_factory=list)
    reads: list[dict[str, str]] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    refuses: bool = False
    accepts_sockets: bool = True
    sockets: list[web.WebSocketResponse] = field(default_factory=list)
    repeats: bool = False  # sends all events of an answer, whichever part is requested
    binary: bool = False  # sends binary frames
    forgets: bool = False  # forgets the last response of a connection
    asked: asyncio.Queue[PaidAnswer] = field(default_factory=asyncio.Queue)
    read_again: asyncio.Queue[PaidAnswer] = field(default_factory=asyncio.Queue)  # answers whose reader is connected

    async def create(self, request: web.Request) -> web.StreamResponse:
        answer = PaidAnswer(f"resp_{len(self.paid)}", await request.json())
        self.paid.append(answer)
        self.asked.put_nowait(answer)
        return await self._stream(request, answer, -1)

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """Serves the WebSocket mode: one response after another. Each request has only the new input, or the whole
        input.
        """
        if not self.accepts_sockets:
            return _failure(426, "upgrade_required")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets.append(socket)
        last: str | None = None
        async for message in socket:
            created = json.loads(message.data)
            assert created.pop("type") == "response.create"
            assert not created.keys() & {"stream", "background"}
            previous = created.get("previous_response_id")
            if previous is not None and (previous != last or self.forgets):
                error = {"code": "previous_response_not_found", "message": "It is gone.", "param": None}
                await socket.send_json({"type": "error", "status": 400, "error": error})
                continue
            answer = PaidAnswer(f"resp_{len(self.paid)}", created)
            self.paid.append(answer)
            assert isinstance(request.transport, asyncio.Transport)
            answer.readers.add(request.transport)
            self.asked.put_nowait(answer)
            last = answer.id
            with suppress(ConnectionError):
                await self._send(answer, socket)
        return socket

    async def _send(self, answer: PaidAnswer, socket: web.WebSocketResponse) -> None:
        sent = 0
        while not socket.closed:
            changed = answer.changed
            for event in answer.events[sent:]:
                text = event["raw"] if "raw" in event else json.dumps(event)
                await (socket.send_bytes(text.encode()) if self.binary else socket.send_str(text))
                sent += 1
            if answer.is_stopped or (answer.is_over and sent == len(answer.events)):
                break
            await changed.wait()

    async def read(self, request: web.Request) -> web.StreamResponse:
        self.reads.append(dict(request.query))
        if self.refuses:
            return _failure(401, "invalid_api_key")
        answer = self._find(request)
        if answer is None:
            return _failure(404, "response_not_found")
        after = -1 if self.repeats else int(request.query.get("starting_after", -1))
        return await self._stream(request, answer, after)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        answer = self._find(request)
        if answer is None:
            return _failure(404, "response_not_found")
        answer.cancelled.set()
        answer.finish("cancelled")
        return web.json_response({"id": answer.id, "object": "response", "status": "cancelled"})

    def _find(self, request: web.Request) -> PaidAnswer | None:
        id = request.match_info["id"]
        return next((each for each in self.paid if each.id == id and id not in self.lost), None)

    async def _stream(self, request: web.Request, answer: PaidAnswer, after: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        transport = request.transport
        assert isinstance(transport, asyncio.Transport)
        answer.readers.add(transport)
        if request.method == "GET":
            self.read_again.put_nowait(answer)
        left = answer.left
        with suppress(ConnectionError):
            while answer.left == left:
                changed = answer.changed
                for event in answer.events[after + 1 :]:
                    await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
                    after = event["sequence_number"]
                if answer.is_stopped or (answer.is_over and after + 1 == len(answer.events)):
                    break
                await changed.wait()
        answer.readers.discard(transport)
        return response


def _failure(status: int, code: str) -> web.Response:
    return web.json_response({"error": {"message": code, "type": "invalid_request_error", "code": code}}, status=status)


@asynccontextmanager
async def responses_server() -> AsyncIterator[ResponsesServer]:
    server = ResponsesServer()
    app = web.Application()
    app.router.add_post("/v1/responses", server.create)
    app.router.add_get("/v1/responses", server.connect)
    app.router.add_get("/v1/responses/{id}", server.read)
    app.router.add_post("/v1/responses/{id}/cancel", server.cancel)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        for answer in server.paid:
            answer.stop()
        for socket in server.sockets:
            await socket.close()
        await runner.cleanup()
