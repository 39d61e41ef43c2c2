"""A server that sends bytes which a test has prepared, and the client of this server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from turnstream_client.http import AsyncClient


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedServer:
    """Answers each request with the next of `answers`, byte for byte, and closes the connection. Keeps the
    `requests`.
    """

    answers: list[bytes] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            method, path, _ = head[0].split()
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append(Request(method, path, headers, body))
            writer.write(self.answers.pop(0))
            await writer.drain()
        writer.close()
        await writer.wait_closed()


Connect = Callable[[], Awaitable[AsyncClient]]


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedServer]:
    script = ScriptedServer()
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.port = server.sockets[0].getsockname()[1]
    yield script
    server.close()
    await server.wait_closed()


@pytest.fixture
async def client(scripted: ScriptedServer) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(scripted.url, "secret")
    yield client
    await client.aclose()


def answer(body: bytes = b"", status: str = "200 OK", kind: str = "application/json", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def stream(*frames: str) -> bytes:
    return answer("".join(frames).encode(), kind="text/event-stream")


def sse(identity: str, event: str, data: str = "{}") -> str:
    return f"id: {identity}\nevent: {event}\ndata: {data}\n\n"
