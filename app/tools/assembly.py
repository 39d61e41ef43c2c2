"""The one toolset of a server, from wherever its tools come."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app.domain.errors import ConfigError
from app.kit.signature import key_of
from app.tools.declared.declarations import Declarations, McpServer, read_declarations
from app.tools.http.addresses import Allowed
from app.tools.http.toolset import HttpTools
from app.tools.loading import load_installed, load_toolset
from app.tools.outputs import Outputs
from app.tools.tool import Tool
from app.tools.toolset import Toolset

if TYPE_CHECKING:
    from app.tools.mcp.toolset import McpServers


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """What the settings say of tools. `environment` is what `$NAME` stands for in `file`."""

    file: Path | None = None
    reference: str | None = None
    signing_secret: str | None = None
    allowed: str | None = None
    max_parallel: int = 16
    max_result_chars: int = 100_000
    max_file_bytes: int = 5_000_000
    environment: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def open_toolset(
    own: Iterable[Tool], wanted: ToolSettings, outputs: Outputs | None = None
) -> AsyncIterator[Toolset]:
    """With the connections that its tools need. Raises ConfigError."""
    declarations = read_declarations(wanted.file, wanted.environment) if wanted.file else Declarations()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpTools(_allowed(wanted.allowed), _checked(wanted.signing_secret)))
        tools = [
            *own,
            *(await load_installed(stack)),
            *(await load_toolset(wanted.reference, stack) if wanted.reference else ()),
            *declarations.made(lambda each: http.declared(each.spec, each.policy, internal=each.internal)),
        ]
        try:
            governed = declarations.applied(tools)
            sources = [await stack.enter_async_context(_mcp(declarations.servers))] if declarations.servers else []
            toolset = Toolset(
                governed,
                wanted.max_parallel,
                wanted.max_result_chars,
                max_file_bytes=wanted.max_file_bytes,
                outputs=outputs,
                sources=sources,
                declared=http.tool_for,
            )
        except ValueError as error:
            raise ConfigError(f"the tools do not go together: {error}") from None
        yield toolset


def _mcp(servers: Sequence[McpServer]) -> "McpServers":
    """Its package costs a second to import."""
    from app.tools.mcp.toolset import McpServers  # noqa: PLC0415

    return McpServers(servers)


def _allowed(entries: str | None) -> Allowed:
    try:
        return Allowed.of(entry.strip() for entry in (entries or "").split(",") if entry.strip())
    except ValueError as error:
        raise ConfigError(f"TURNSTREAM_HTTP_TOOLS_ALLOW: {error}") from None


def _checked(secret: str | None) -> str | None:
    try:
        if secret is not None:
            key_of(secret)
    except ValueError as error:
        raise ConfigError(f"TURNSTREAM_SIGNING_SECRET: {error}") from None
    return secret
