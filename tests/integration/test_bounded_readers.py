"""Every reader of what others send, against a sender without an end. The table in docs/security.md lists them."""

import asyncio
import io
import json
import re
import sys
import tarfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import httpx2
import pytest
import structlog

from tests.extensions.mcp.mcp_hostile import TOOLS
from tests.extensions.mcp.mcp_servers import ROOT, context_with, time_over_http
from tests.support.server_process import free_port
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ConfigError, ProviderError
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.extensions.archives.commands import _parts_in
from turnstream.extensions.archives.tar import MAX_ATTRIBUTE_BYTES, MAX_FILE_BYTES
from turnstream.extensions.http_tools.addresses import Allowed
from turnstream.extensions.http_tools.tool import HttpTools
from turnstream.extensions.jwt.issuer_keys import _MOST_BYTES, IssuerKeys
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.servers import MAX_TOOLS, McpServers, McpTiming
from turnstream.extensions.mcp.tool import MAX_DESCRIPTION
from turnstream.extensions.mcp.transport import MAX_MESSAGE_BYTES, LineSplitter, refusal_of
from turnstream.extensions.openai.provider import OpenAIChatProvider, OpenAIResponsesProvider
from turnstream.extensions.webhooks.deliveries import Receiver, post_signed
from turnstream.llm.anthropic.provider import AnthropicProvider
from turnstream.llm.provider import Message, ModelRequest
from turnstream.llm.transport.http import MAX_COUNT_BYTES, MAX_EVENT_BYTES, Adapter
from turnstream.llm.transport.response import MAX_FAILURE_BYTES
from turnstream.tools.policy import Policy
from turnstream.tools.tool import ToolError, ToolUnavailable

ADAPTERS = [AnthropicProvider, OpenAIChatProvider, OpenAIResponsesProvider]
REQUEST = ModelRequest("a-model", (Message("user", (Block(0, 0, 0, "text", "Hello"),)),))
PIECE = b"x" * 65_536
ON_THE_WAY = 16_000_000  # bytes that both kernels may hold, which no reader has read


@dataclass
class Endless:
    """A server that answers every request with a body without an end. `sent` counts its bytes."""

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
        await endless.gone.wait()  # the reader has closed the connection


async def failure_of(provider: Adapter) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        async for _ in provider.stream(REQUEST):
            pass
    return raised.value


# --- readers ---------------------------------------------------------------------------------------------------------


async def read_model(make: Callable[..., Adapter], endless: Endless, direct: bool, expected: str) -> None:
    async with sending(endless), make("a key", endless.url, direct=direct) as provider:
        assert (await failure_of(provider)).type == expected


async def read_count(make: Callable[..., AnthropicProvider | OpenAIResponsesProvider]) -> None:
    async with sending(Endless()) as endless, make("a key", endless.url) as provider:
        with pytest.raises(ProviderError, match="count of tokens could not be read"):
            await provider.count(REQUEST)
    assert endless.sent < ON_THE_WAY


async def each(endless: Callable[[], Endless], expected: str) -> None:
    for make in ADAPTERS:
        for direct in (True, False):
            sender = endless()
            await read_model(make, sender, direct, expected)
            assert sender.sent < MAX_EVENT_BYTES + ON_THE_WAY


async def read_counts() -> None:
    await read_count(AnthropicProvider)
    await read_count(OpenAIResponsesProvider)


async def read_http_tool() -> None:
    async with sending(Endless()) as endless, HttpTools(Allowed.of(["127.0.0.1"])) as tools:
        spec = ToolSpec("weather", "…", '{"type":"object"}', http=HttpCall(endless.url))
        with pytest.raises(ToolError, match="was too long to be read"):
            await tools.operator_tool(spec, Policy())(context_with(), "{}")
    assert endless.sent < 1_000_000 + ON_THE_WAY


async def read_webhook() -> None:
    async with sending(Endless()) as endless, aiohttp.ClientSession() as http:
        assert (
            await post_signed(http, Receiver(endless.url, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "id", b"") == 200
        )
    assert endless.sent < ON_THE_WAY


async def read_issuer(gzip: bool = False) -> None:
    for url in (True, False):
        async with sending(Endless(gzip=gzip)) as endless, httpx2.AsyncClient() as client:
            keys = IssuerKeys(endless.url, endless.url if url else None, client)
            with structlog.testing.capture_logs() as logs:
                await keys._fetch()
            await keys.close()
        assert f"has more than {_MOST_BYTES} bytes" in logs[0]["error"]
        assert endless.sent < ON_THE_WAY


async def read_mcp_over_http(*options: str) -> None:
    port = free_port()
    async with time_over_http(port, *options, module="mcp_hostile"):
        await call_all(McpServer("hostile", url=f"http://127.0.0.1:{port}/mcp"))


async def call_all(server: McpServer) -> None:
    async with McpServers([server], McpTiming(connect_timeout=60, pause=0.01)) as servers:
        tools = servers.tools()
        for name in TOOLS:
            called = tools[f"hostile__{name}"](context_with(), "{}")
            match name:
                case "fine":
                    assert (await called).text == "fine"
                case "failure" if server.url:
                    with pytest.raises(ToolUnavailable, match="failed"):
                        await called
                case _:
                    with pytest.raises(
                        ToolError, match=f"^The answer of {name} was too long to be read. Ask for less."
                    ):
                        await called
        assert "hostile" in servers.connected or server.url


async def read_mcp_over_stdio() -> None:
    arguments = ("-m", "tests.extensions.mcp.mcp_hostile", "--finite")
    await call_all(McpServer("hostile", command=sys.executable, args=arguments, cwd=ROOT))


async def read_mcp_tools() -> None:
    listed = {
        "many": "more than 500 tools",
        "wordy": "description has more than",
        "wide": "more than 1000 objects",
        "shapeless": "the input schema is not valid",
    }
    for what, problem in listed.items():
        arguments = ("-m", "tests.extensions.mcp.mcp_hostile", "--list", what)
        with structlog.testing.capture_logs() as logs:
            server = McpServer("hostile", command=sys.executable, args=arguments, cwd=ROOT)
            async with McpServers([server], McpTiming(connect_timeout=60)) as servers:
                assert len(servers.tools()) == (MAX_TOOLS if what == "many" else len(TOOLS))
        (line,) = (line for line in logs if line["event"] == "mcp.tools_left_out")
        assert 1 <= len(line["tools"]) <= 10
        assert problem in next(iter(line["tools"].values()))
    for what, problem in {"pages": "more than 100 pages", "endless": f"more than {MAX_MESSAGE_BYTES:,} bytes"}.items():
        arguments = ("-m", "tests.extensions.mcp.mcp_hostile", "--list", what)
        with structlog.testing.capture_logs() as logs:
            server = McpServer("hostile", command=sys.executable, args=arguments, cwd=ROOT)
            async with McpServers([server], McpTiming(connect_timeout=60)) as servers:
                assert not servers.tools()
        assert problem in next(line["reason"] for line in logs if line["event"] == "mcp.failed")


async def read_archive() -> None:
    attributes = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
    bounds = {tarfile.REGTYPE: MAX_FILE_BYTES, **dict.fromkeys(attributes, MAX_ATTRIBUTE_BYTES)}
    for type, bound in bounds.items():
        huge = tarfile.TarInfo("huge.json")
        huge.type, huge.size = type, bound + 1
        packed = io.BytesIO(huge.tobuf() + bytes(10_000))
        with pytest.raises(ConfigError, match=f"of {bound:,} that it may have"):
            list(_parts_in(packed))


READERS: Mapping[str, tuple[int | None, Callable[[], Awaitable[None]] | str]] = {
    "stream of a provider": (
        MAX_EVENT_BYTES,
        partial(each, lambda: Endless("text/event-stream", beginning=b'data: {"type":"'), "event_too_long"),
    ),
    "answer of a provider as one JSON value": (MAX_EVENT_BYTES, partial(each, Endless, "event_too_long")),
    "failure of a provider": (MAX_FAILURE_BYTES, partial(each, lambda: Endless(status=500), "http_500")),
    "compressed failure of a provider": (
        MAX_FAILURE_BYTES,
        partial(each, lambda: Endless(status=500, gzip=True), "http_500"),
    ),
    "another content type from a provider": (
        MAX_FAILURE_BYTES,
        partial(each, lambda: Endless("text/html", beginning=b"<title>Log in</title>"), "bad_content_type"),
    ),
    "token count of a provider": (MAX_COUNT_BYTES, read_counts),
    "HTTP tool": (1_000_000, read_http_tool),
    "MCP server over HTTP: JSON": (MAX_MESSAGE_BYTES, read_mcp_over_http),
    "MCP server over HTTP: events": (MAX_MESSAGE_BYTES, partial(read_mcp_over_http, "--events")),
    "MCP server over stdio": (MAX_MESSAGE_BYTES, read_mcp_over_stdio),
    "list of the tools of an MCP server": (MAX_MESSAGE_BYTES, read_mcp_tools),
    "receiver of webhooks": (0, read_webhook),
    "keys and configuration of an issuer": (_MOST_BYTES, read_issuer),
    "compressed keys of an issuer": (_MOST_BYTES, partial(read_issuer, gzip=True)),
    "archive of an owner": (MAX_FILE_BYTES, read_archive),
    "body of a request": (
        None,
        "tests/integration/api/test_refusals.py::test_a_body_that_is_too_large_is_refused",
    ),
    "upload": (None, "tests/integration/api/test_refusals.py::test_a_body_that_is_too_large_is_refused"),
}


@pytest.mark.parametrize("reader", [name for name, (_, read) in READERS.items() if not isinstance(read, str)])
async def test_a_reader_stops_at_its_bound(reader: str) -> None:
    _, read = READERS[reader]
    assert callable(read)
    async with asyncio.timeout(60):
        await read()


def test_the_table_in_the_docs_has_every_reader_with_its_bound() -> None:
    text = Path(ROOT, "docs/security.md").read_text(encoding="utf-8")
    _, _, section = text.partition("### Readers of what others send\n")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section.partition("\n#")[0], re.MULTILINE)[1:]
    documented = {name: bound for name, bound in rows if name != "---"}
    assert [*documented] == [*READERS]
    for name, (bound, test) in READERS.items():
        assert bound is None or documented[name].startswith(f"{bound:,}"), name
        if isinstance(test, str):
            path, _, function = test.partition("::")
            assert f"def {function}(" in Path(ROOT, path).read_text(encoding="utf-8")


# --- lines of a process ----------------------------------------------------------------------------------------------


def test_a_line_that_is_too_long_keeps_its_ends_and_the_next_one_is_whole() -> None:
    lines = LineSplitter()
    found = [*lines.feed(b'{"jsonrpc":"2.0","id":7,"result":"')]
    for _ in range(MAX_MESSAGE_BYTES // len(PIECE) + 1):
        found += lines.feed(PIECE)
    found += lines.feed(b'"}\n{"next": 1}\n')
    (cut, is_whole), after = found
    assert not is_whole
    assert len(cut) == 2000
    assert after == (b'{"next": 1}', True)
    assert not lines.is_endless


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"a"', 7),
        (b'{"id": 8, "jsonrpc": "2.0", "result"', 8),
        (b'xxxx"}]},"jsonrpc":"2.0","id":9}', 9),
        (b'xxxx"}]}, "id": 10, "jsonrpc": "2.0"} ', 10),
        (b'{"jsonrpc":"2.0","result":{"id":7,"text":"xxxx"}}', None),
        (b'{"jsonrpc":"2.0","method":"x","params":{"a":"xxxx","id":7}}', None),
    ],
)
def test_the_request_is_found_at_the_ends_of_a_response_and_not_in_its_result(line: bytes, id: int | None) -> None:
    refusal = refusal_of(line)
    assert (None if refusal is None else json.loads(refusal.message.model_dump_json())["id"]) == id


def test_descriptions_have_a_bound_that_the_docs_name() -> None:
    assert f"{MAX_DESCRIPTION:,} characters" in Path(ROOT, "docs/security.md").read_text(encoding="utf-8")
