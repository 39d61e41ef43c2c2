"""Assembly of the toolset of a server from its own tools, installed packages, a module and a tools file."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app.domain.errors import ConfigError
from app.kit.signature import key_of
from app.tools.declared.declarations import Declarations, McpServer, read_declarations
from app.tools.http.addresses import Allowed
from app.tools.http.tool import HttpTools
from app.tools.loading import load_installed, load_toolset
from app.tools.outputs import Outputs
from app.tools.tool import Tool
from app.tools.toolset import Toolset

if TYPE_CHECKING:
    from app.tools.mcp.servers import McpServers


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The settings of tools. `environment` has the variables that `file` may name."""

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
    own: Iterable[Tool], settings: ToolSettings, outputs: Outputs | None = None
) -> AsyncIterator[Toolset]:
    """Opens the toolset and the connections that its tools need. Raises ConfigError."""
    declarations = read_declarations(settings.file, settings.environment) if settings.file else Declarations()
    with _config_error("TURNSTREAM_HTTP_TOOLS_ALLOW"):
        allowed = Allowed.of(entry.strip() for entry in (settings.allowed or "").split(",") if entry.strip())
    with _config_error("TURNSTREAM_SIGNING_SECRET"):
        if settings.signing_secret is not None:
            key_of(settings.signing_secret)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpTools(allowed, settings.signing_secret))
        tools = [
            *own,
            *(await load_installed(stack)),
            *(await load_toolset(settings.reference, stack) if settings.reference else ()),
            *declarations.http_tools(lambda each: http.operator_tool(each.spec, each.policy, internal=each.internal)),
        ]
        tools = declarations.apply_policies(tools)
        with _config_error("the tools do not go together"):
            sources = [await stack.enter_async_context(_mcp(declarations.servers))] if declarations.servers else []
            toolset = Toolset(
                tools,
                settings.max_parallel,
                settings.max_result_chars,
                max_file_bytes=settings.max_file_bytes,
                outputs=outputs,
                sources=sources,
                declared=http.request_tool,
            )
        yield toolset


def _mcp(servers: Sequence[McpServer]) -> "McpServers":
    """Imported only when needed: the package takes a second."""
    from app.tools.mcp.servers import McpServers  # noqa: PLC0415

    return McpServers(servers)


@contextmanager
def _config_error(subject: str) -> Iterator[None]:
    """Turns a ValueError into a ConfigError that names its subject."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{subject}: {error}") from None
