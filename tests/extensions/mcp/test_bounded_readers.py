"""MCP servers that send endless output."""

import json
import sys
from pathlib import Path

import pytest
import structlog

from tests.extensions.mcp.mcp_hostile import TOOLS
from tests.extensions.mcp.mcp_servers import ROOT, context_with, time_over_http
from tests.support.endless import PIECE, check_documented
from tests.support.server_process import free_port
from turnstream.extensions.mcp.connection import MAX_TOOLS, McpTiming
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.servers import McpServers
from turnstream.extensions.mcp.tool import MAX_DESCRIPTION
from turnstream.extensions.mcp.transport import MAX_MESSAGE_BYTES, LineSplitter, refusal_of
from turnstream.tools.tool import ToolError, ToolUnavailable


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


@pytest.mark.parametrize("options", [[], ["--events"]], ids=["JSON", "events"])
async def test_a_message_over_http_is_read_up_to_its_bound(options: list[str]) -> None:
    check_documented(f"MCP server over HTTP: {'events' if options else 'JSON'}", MAX_MESSAGE_BYTES)
    port = free_port()
    async with time_over_http(port, *options, module="mcp_hostile"):
        await call_all(McpServer("hostile", url=f"http://127.0.0.1:{port}/mcp"))


async def test_a_message_over_stdio_is_read_up_to_its_bound() -> None:
    check_documented("MCP server over stdio", MAX_MESSAGE_BYTES)
    arguments = ("-m", "tests.extensions.mcp.mcp_hostile", "--finite")
    await call_all(McpServer("hostile", command=sys.executable, args=arguments, cwd=ROOT))


async def test_a_list_of_tools_is_read_up_to_its_bound() -> None:
    check_documented("list of the tools of an MCP server", MAX_MESSAGE_BYTES)
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
