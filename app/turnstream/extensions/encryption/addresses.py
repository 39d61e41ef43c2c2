"""Lists the addresses at which owners may sign in, from the tools file."""

from collections.abc import Collection

from turnstream.config import Settings, read_environment
from turnstream.extension import selected
from turnstream.libraries.outgoing.owner_tokens import accesses_of
from turnstream.libraries.tool_sources.kinds import read_tools_file, source_kinds
from turnstream.libraries.tools_file_settings import ToolsFileSettings


def sign_in_addresses(settings: Settings) -> Collection[str]:
    """Returns the URLs of MCP servers, and of the services of HTTP tools. Raises ConfigError."""
    kinds = source_kinds(settings, selected(settings))
    file = settings.section(ToolsFileSettings).tools_file
    declarations = read_tools_file(file, kinds, read_environment())
    tools = [tool for kind in kinds if kind.name == "http" for tool in kind.make(declarations).tools]
    servers = declarations.each("mcp", lambda _, table: declarations.fill("url", table.url or ""))
    return {*servers, *(access.service.url for access in accesses_of(tools))}
