"""MCP servers for tests: their declarations, how they are started, and helpers that find their processes."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil

from turnstream.domain.turns import ToolSpec
from turnstream.extensions.mcp.declared import McpServer, McpTable, servers_of
from turnstream.extensions.mcp.servers import McpServers
from turnstream.libraries.tool_sources.declarations import read_declarations
from turnstream.tools.policy import Policy
from turnstream.tools.tool import Outcome, Tool, ToolContext

ROOT = str(Path(__file__).parents[3])
TIME = McpServer("time", command=sys.executable, args=("-m", "mcp_server_time", "--local-timezone", "UTC"))
PACES = McpServer("paces", command=sys.executable, args=("-m", "tests.extensions.mcp.mcp_paces"), cwd=ROOT)
OLD_PACES = McpServer("paces", command=sys.executable, args=(*PACES.args, "--old"), cwd=ROOT)
OFFERS = McpServer("offers", command=sys.executable, args=("-m", "tests.extensions.mcp.mcp_offers"), cwd=ROOT)
APPS = McpServer("apps", command=sys.executable, args=("-m", "tests.extensions.mcp.mcp_apps"), cwd=ROOT)
BERLIN = '{"timezone": "Europe/Berlin"}'


def process_of(server: McpServer) -> psutil.Process:
    """Returns the process of the server: a child of the test process, which may also have zombies as children."""
    commands = {child: child.as_dict(["cmdline"])["cmdline"] or () for child in psutil.Process().children()}
    (found,) = [child for child, command in commands.items() if [*command][1:] == [*server.args]]
    return found


@asynccontextmanager
async def time_over_http(port: int, *options: str, module: str = "mcp_time_over_http") -> AsyncIterator[psutil.Process]:
    """Runs a server over HTTP, and yields its process as soon as the server listens. A test may kill the process."""
    command = [sys.executable, "-m", f"tests.extensions.mcp.{module}", str(port), *options]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    while b"Uvicorn running" not in (line := await process.stderr.readline()):
        assert line, "it did not start"
    draining = asyncio.create_task(process.stderr.read())
    try:
        yield psutil.Process(process.pid)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await draining


def context_with(progress: list[str] | None = None, begun: asyncio.Event | None = None) -> ToolContext:
    """Returns a context that appends preliminary output to `progress` and then sets `begun`."""

    def show(words: str) -> None:
        if progress is not None:
            progress.append(words)
        if begun is not None:
            begun.set()

    return ToolContext("ada", uuid4(), uuid4(), "toolu_1", "key-1", show)


@dataclass(frozen=True)
class Announced:
    """A tool that sets the event `called` in each call."""

    tool: Tool
    called: asyncio.Event

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    @property
    def policy(self) -> Policy:
        return self.tool.policy

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        self.called.set()
        return await self.tool(context, input_json)


@dataclass(frozen=True)
class Announcing:
    servers: McpServers
    called: asyncio.Event = field(default_factory=asyncio.Event)

    def tools(self) -> Mapping[str, Tool]:
        return {name: Announced(tool, self.called) for name, tool in self.servers.tools().items()}


def declared_servers(path: Path, environment: Mapping[str, str]) -> list[McpServer]:
    """Returns the MCP servers that a tools file declares."""
    return servers_of(read_declarations(path, environment, {"mcp": McpTable}))
