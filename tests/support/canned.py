"""A model API on a local socket. It answers with prepared bytes, in pieces of any size, and may break off in any
way.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from weakref import WeakSet

Ending = Literal["end", "cut", "reset", "wait"]


@dataclass(frozen=True)
class Answer:
    """A prepared answer. `sizes` are the lengths of the pieces, repeated. `cut` leaves the body unfinished, and `wait`
    also leaves the connection open. Without `head` the server sends nothing.
    """

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    sizes: Iterable[int] = (65_536,)
    ending: Ending = "end"
    head: bool = True


@dataclass(frozen=True)
class Asked:
    """A received request. `head` has the request line and the headers as they were sent."""

    target: str
    headers: Mapping[str, str]
    body: bytes
    head: str = ""


@dataclass
class CannedServer:
    """Sends `answer` to every request. `connections` counts all connections, and `closed` counts the closed ones."""

    url: str = ""
    answer: Answer = Answer(b"")
    requests: list[Asked] = field(default_factory=list)
    connections: int = 0
    closed: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    serving: WeakSet[asyncio.Task[None] | None] = field(default_factory=WeakSet)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.serving.add(asyncio.current_task())
        try:
            # Only `stop` cancels this task. asyncio would log the cancellation.
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
        finally:
            self.closed.release()
            writer.close()

    async def stop(self) -> None:
        """Closes the remaining connections."""
        left = [task for task in self.serving if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def answer_to(self, asked: Asked) -> Answer:
        return self.answer

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.requests.append(await _read(reader))
        answer = self.answer_to(self.requests[-1])
        headers = {**answer.headers, "transfer-encoding": "chunked"}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if answer.head:
            writer.write(f"HTTP/1.1 {answer.status} Canned\r\n{head}\r\n".encode())
        for piece in _pieces(answer.body, answer.sizes):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        match answer.ending:
            case "end":
                writer.write(b"0\r\n\r\n")
                await writer.drain()
            case "reset":
                writer.transport.abort()
            case "wait":
                await reader.read()
            case "cut":
                pass
        return answer.ending == "end"


def _pieces(body: bytes, sizes: Iterable[int]) -> Iterable[bytes]:
    place = 0
    for size in itertools.cycle(sizes):
        if place >= len(body):
            return
        yield body[place : place + size]
        place += size


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(request.split()[1], headers, body, head)


C = TypeVar("C", bound=CannedServer)


@asynccontextmanager
async def served(canned: C) -> AsyncIterator[C]:
    server = await asyncio.start_server(canned.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    canned.url = f"http://{host}:{port}"
    try:
        yield canned
    finally:
        server.close()
        await server.wait_closed()
        await canned.stop()


def canned_server() -> AbstractAsyncContextManager[CannedServer]:
    return served(CannedServer())
