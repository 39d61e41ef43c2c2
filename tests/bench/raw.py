"""A lower bound for servers in Python: it reads the provider's socket as an asyncio protocol, parses events by hand,
and answers with raw ASGI. It stores nothing and cannot resume a stream.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

PROVIDER = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Call(asyncio.Protocol):
    """One call of the provider on a new connection."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._news = asyncio.Event()
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        head = f"POST /v1/messages HTTP/1.1\r\nhost: provider\r\ncontent-length: {len(self._body)}\r\n\r\n"
        transport.write(head.encode() + self._body)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._news.set()

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self._ended = True

    async def read(self) -> bytes:
        """Returns the data that was received since the previous read. The data is empty at the end."""
        while not self._parts and not self._ended:
            self._news.clear()
            await self._news.wait()
        read = b"".join(self._parts)
        self._parts.clear()
        return read


def frames(events: list[bytes]) -> Iterator[bytes]:
    for event in events:
        name, _, data = event.partition(b"\ndata: ")
        decoded = msgspec.json.decode(data)
        yield name + b"\ndata: " + msgspec.json.encode(decoded) + b"\n\n"


async def answer(message: str, send: Send) -> None:
    request = {"model": "bench", "max_tokens": 1024, "stream": True, "messages": [{"role": "user", "content": message}]}
    loop = asyncio.get_running_loop()
    transport, call = await loop.create_connection(
        lambda: Call(msgspec.json.encode(request)), PROVIDER.hostname or "", PROVIDER.port or 80
    )
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]},
    )
    rest = b""
    try:
        while read := await call.read():
            *events, rest = (rest + read).split(b"\n\n")
            if events:
                await send({"type": "http.response.body", "body": b"".join(frames(events)), "more_body": True})
    finally:
        transport.close()
    await send({"type": "http.response.body", "body": b""})


async def app(scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
    if scope["type"] == "lifespan":
        while (event := (await receive())["type"]) != "lifespan.shutdown":
            await send({"type": f"{event}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["path"] == "/healthz":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
    else:
        await answer(msgspec.json.decode((await receive())["body"])["message"], send)
