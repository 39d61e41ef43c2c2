"""The addresses at which owners may sign in, by the tools file."""

from collections.abc import Collection

from turnstream.config import Settings, read_environment
from turnstream.extension import selected
from turnstream.libraries.outgoing.owner_tokens import accesses_of
from turnstream.setup.toolset import source_kinds
from turnstream.tools.declared.declarations import read_declarations


def sign_in_addresses(settings: Settings) -> Collection[str]:
    """The URLs of MCP servers and of services of HTTP tools. Raises ConfigError."""
    if settings.tools_file is None:
        return ()
    kinds = source_kinds(settings, selected(settings))
    tables = {kind.name: kind.table for kind in kinds if kind.table is not None}
    declarations = read_declarations(settings.tools_file, read_environment(), tables)
    tools = [tool for kind in kinds if kind.name == "http" for tool in kind.make(declarations).tools]
    servers = declarations.each("mcp", lambda _, table: declarations.fill("url", table.url or ""))
    return {*servers, *(access.service.url for access in accesses_of(tools))}
