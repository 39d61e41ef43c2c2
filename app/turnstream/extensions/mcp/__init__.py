"""Tools of MCP servers, which the tools file names."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.config import Settings
from turnstream.domain.extras import need
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.tools.declared.declarations import Declarations
    from turnstream.tools.sources import LoadedTools, SourceKind


def _make(declarations: "Declarations") -> "LoadedTools":
    from turnstream.extensions.mcp.declared import servers_of
    from turnstream.tools.declared.declarations import errors_named
    from turnstream.tools.sources import LoadedTools

    servers = servers_of(declarations)
    if not servers:
        return LoadedTools()
    need("mcp", "mcp", f"{declarations.source}: [mcp.{servers[0].name}]")
    from turnstream.extensions.mcp.servers import McpServers  # a second

    with errors_named(f"{declarations.source}:"):
        source = McpServers(servers)
    return LoadedTools(sources=[source], prefixes=[server.name_prefix for server in servers], connections=[source])


def _tool_sources(_: Settings) -> "Sequence[SourceKind]":
    from turnstream.extensions.mcp.declared import McpTable
    from turnstream.tools.sources import SourceKind

    return [SourceKind("mcp", McpTable, _make)]


def _work(context: Context) -> Work:
    from turnstream.extensions.mcp.stopping import StoppedTasks, TaskSource

    sources = [source for source in context.toolset.sources if isinstance(source, TaskSource)]
    return Work(hooks=[StoppedTasks(context.database, sources)]) if sources else Work()


EXTENSION = Extension("mcp", "tools of MCP servers", tool_sources=_tool_sources, work=_work)
