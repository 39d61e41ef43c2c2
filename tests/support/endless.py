"""An endless sender, and the documented limits of readers."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from tests.support.pages import ROOT
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ProviderError
from turnstream.libraries.providers.transport.http import Adapter
from turnstream.libraries.providers.transport.response import MAX_FAILURE_BYTES
from turnstream.llm.provider import MAX_EVENT_BYTES, Message, ModelRequest

REQUEST = ModelRequest("a-model", (Message("user", (Block(0, 0, 0, "text", "Hello"),)),))
PIECE = b"x" * 65_536
ON_THE_WAY = 16_000_000  # bytes that the kernels of both sides may hold before a reader has read them


@dataclass
class Endless:
    """A server that answers every request with an endless body. `sent` counts the bytes of the body."""

    kind: str = "application/json"
    status: int = 200
    beginning: bytes = b""
    piece: bytes = PIECE
    gzip: bool = False
    url: str = ""
    sent: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {self.status} Endless\r\ncontent-type: {self.kind}\r\ntransfer-encoding: chunked\r\n"
        packer = zlib.compressobj(wbits=31)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"{head}{'content-encoding: gzip' if self.gzip else 'x-plain: 1'}\r\n\r\n".encode())
            piece = self.beginning
            while True:
                data = packer.compress(piece or self.piece) if self.gzip else piece or self.piece
                if data:
                    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                    self.sent += len(data)
                await writer.drain()
                await asyncio.sleep(0)
                piece = b""
        self.gone.set()
        writer.close()


@asynccontextmanager
async def sending(endless: Endless) -> AsyncIterator[Endless]:
    server = await asyncio.start_server(endless.serve, "127.0.0.1", 0)
    async with server:
        endless.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield endless
        await endless.gone.wait()  # the reader must close the connection


# --- providers -------------------------------------------------------------------------------------------------------

# Endless data from a provider, by the row of the table: the limit, the sender, and the failure of the call.
ANSWERS: Mapping[str, tuple[int, Callable[[], Endless], str]] = {
    "stream of a provider": (
        MAX_EVENT_BYTES,
        lambda: Endless("text/event-stream", beginning=b'data: {"type":"'),
        "event_too_long",
    ),
    "answer of a provider as one JSON value": (MAX_EVENT_BYTES, Endless, "event_too_long"),
    "failure of a provider": (MAX_FAILURE_BYTES, lambda: Endless(status=500), "http_500"),
    "compressed failure of a provider": (MAX_FAILURE_BYTES, lambda: Endless(status=500, gzip=True), "http_500"),
    "another content type from a provider": (
        MAX_FAILURE_BYTES,
        lambda: Endless("text/html", beginning=b"<title>Log in</title>"),
        "bad_content_type",
    ),
}


async def read_answer(make: Callable[..., Adapter], answer: str) -> None:
    _, sender, expected = ANSWERS[answer]
    async with sending(sender()) as endless, make("a key", endless.url) as provider:
        with pytest.raises(ProviderError) as raised:
            async for _ in provider.stream(REQUEST):
                pass
    assert raised.value.type == expected
    assert endless.sent < MAX_EVENT_BYTES + ON_THE_WAY


async def read_count(make: Callable[..., Adapter]) -> None:
    async with sending(Endless()) as endless, make("a key", endless.url) as provider:
        with pytest.raises(ProviderError, match="count of tokens could not be read"):
            await provider.count(REQUEST)  # type: ignore[attr-defined]
    assert endless.sent < ON_THE_WAY


# --- the documentation -----------------------------------------------------------------------------------------------


def documented_bounds() -> Mapping[str, str]:
    """Returns the column of bytes in docs/security.md, by reader."""
    _, _, section = (
        (ROOT / "docs/security.md").read_text(encoding="utf-8").partition("### Readers of what others send\n")
    )
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section.partition("\n#")[0], re.MULTILINE)[1:]
    return {name: bound for name, bound in rows if name != "---"}


def check_documented(reader: str, bound: int) -> None:
    assert documented_bounds()[reader].startswith(f"{bound:,}"), reader
