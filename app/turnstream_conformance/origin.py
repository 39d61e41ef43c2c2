"""An HTTP server that controls every byte: where a chunk ends, and when and how a connection is cut."""

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

# These headers allow the tested client to be a page of another origin.
_CROSS_ORIGIN = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key, Last-Event-ID",
    "Access-Control-Expose-Headers": "Retry-After, Turnstream-Heartbeat",
}
STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",
}


@dataclass(frozen=True, slots=True)
class Request:
    """The names of `headers` are in lower case. `at` is the time of arrival, by the monotonic clock."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def cursor(self) -> str | None:
        return self.headers.get("last-event-id") or self.query.get("cursor")


class Response:
    """The response to one request. If the handler returns before the response is complete, the connection closes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Starts a chunked body."""
        await self._head(status, {**headers, "Transfer-Encoding": "chunked"})

    async def send(self, chunk: bytes) -> None:
        """Sends one chunk. Raises OSError if the client has disconnected."""
        self._writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        length = {} if status == HTTPStatus.NO_CONTENT else {"Content-Length": str(len(body))}
        await self._head(status, {**headers, **length})
        self._writer.write(body)
        await self._writer.drain()

    async def json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        kind = "application/problem+json" if status >= HTTPStatus.BAD_REQUEST else "application/json"
        await self.whole(status, {"Content-Type": kind, **(headers or {})}, json.dumps(value).encode())

    async def gone(self) -> None:
        """Returns when the client has closed the connection."""
        with suppress(OSError):
            while await self._reader.read(4096):
                pass

    def reset(self) -> None:
        """Closes the connection with a TCP reset: data that the client has not read is lost."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def _head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in {**_CROSS_ORIGIN, **headers}.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode())
        await self._writer.drain()


Handler = Callable[[Request, Response], Awaitable[None]]


@asynccontextmanager
async def origin(handler: Handler, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Runs a server, and yields its URL. Raises OSError if the address is in use."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _request(reader)
            response = Response(reader, writer)
            if request.method == "OPTIONS":
                await response.whole(204, {"Access-Control-Allow-Methods": "GET, POST"})
            else:
                await handler(request, response)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has disconnected
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, port)
    try:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    if headers.get("transfer-encoding", "") == "chunked":
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    address = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(address.query).items()}
    return Request(method, address.path, query, headers, body)
