"""The toolset of a server: its built-in tools, and those of installed packages, a module and tool sources."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension, left_out, refused, selected
from turnstream.tools.assembly import load_installed, load_toolset
from turnstream.tools.declared.declarations import Declarations, errors_collected, errors_named, read_declarations
from turnstream.tools.declared.tables import PolicyTable
from turnstream.tools.outputs import Outputs
from turnstream.tools.sources import LoadedTools, SourceKind
from turnstream.tools.tool import Tool
from turnstream.tools.toolset import Toolset

# Maps fields of ToolSettings to settings.
SETTINGS = {
    "file": "tools_file",
    "reference": "toolset",
    "max_parallel": "parallel_tools",
    "max_request_tools": "parallel_tools",
    "max_result_chars": "max_result_chars",
    "max_file_bytes": "max_upload_bytes",
    "signing_secret": "signing_secret",
    "allowed": "http_tools_allow",
    "request_tools": "request_tools",
    "request_tools_allowed": "request_tools_allow",
    "request_tools_timeout": "request_tools_timeout",
    "tool_secrets": "tool_secrets",
}


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The settings of tools, for a program. `environment` has the variables for `file` and for factories."""

    file: Path | None = None
    reference: str | None = None
    signing_secret: str | None = None
    allowed: str | None = None
    request_tools: Literal["public", "listed", "off"] = "public"
    request_tools_allowed: str | None = None
    request_tools_timeout: float = 60.0
    tool_secrets: str | None = None
    max_parallel: int = 16
    max_request_tools: int = 16
    max_result_chars: int = 100_000
    max_file_bytes: int = 5_000_000
    environment: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def open_toolset(
    own: Iterable[Tool],
    settings: ToolSettings,
    outputs: Outputs | None = None,
    *,
    connect_mcp: bool = True,
    kinds: Sequence[SourceKind] | None = None,
) -> AsyncIterator[Toolset]:
    """Opens the toolset and, with `connect_mcp`, the connections of its sources. The default of `kinds` is the source
    kinds of the extensions. Raises ConfigError with a sentence for each wrong setting.
    """
    kinds = _installed_kinds(settings) if kinds is None else kinds
    problems: list[str] = []
    declarations = Declarations(environment=settings.environment)
    loaded, made = list[LoadedTools](), list[LoadedTools]()
    async with AsyncExitStack() as stack:
        with errors_collected(problems):
            if settings.file is not None:
                tables = {kind.name: kind.table for kind in kinds if kind.table is not None}
                declarations = read_declarations(settings.file, settings.environment, tables)
        for kind in kinds:
            with errors_collected(problems):
                made.append(kind.make(declarations))
        with errors_collected(problems):
            loaded += await load_installed(stack, settings.environment)
        with errors_collected(problems):
            if settings.reference:
                loaded.append(await load_toolset(settings.reference, stack, settings.environment))
        if problems:
            raise ConfigError(*problems)
        loaded += made
        tools = [*own, *(tool for each in loaded for tool in each.tools)]
        tools = declarations.apply_policies(tools, [prefix for each in loaded for prefix in each.prefixes])
        with errors_named("the tools do not go together:"):
            toolset = Toolset(
                tools,
                settings.max_parallel,
                settings.max_result_chars,
                max_file_bytes=settings.max_file_bytes,
                outputs=merged(*(each.outputs for each in loaded), outputs or Outputs()),
                sources=[source for each in loaded for source in each.sources],
                declared=next((each.declared for each in loaded if each.declared is not None), None),
                offers=[each.offer for each in loaded if each.offer is not None],
                max_request_tools=settings.max_request_tools,
                reserved=True,
            )
        if connect_mcp:
            for connection in (connection for each in loaded for connection in each.connections):
                await stack.enter_async_context(connection)
        yield toolset


def source_kinds(settings: Settings, extensions: Sequence[Extension]) -> Sequence[SourceKind]:
    """The kinds of the extensions. Tables of installed but unselected extensions are refused."""
    kinds = {kind.name: kind for extension in extensions for kind in extension.tool_sources(settings)}
    for extension in left_out(extensions):
        for kind in (kind for kind in extension.tool_sources(settings) if kind.table is not None):
            kinds.setdefault(kind.name, SourceKind(kind.name, _AnyTable, partial(_refuse, kind.name, extension)))
    return list(kinds.values())


class _AnyTable(PolicyTable):
    model_config = ConfigDict(extra="allow")


def _refuse(kind: str, extension: Extension, declarations: Declarations) -> LoadedTools:
    for name in declarations.tables.get(kind, {}):
        raise refused(f"{declarations.source}: [{kind}.{name}]", extension)
    return LoadedTools()


def _installed_kinds(given: ToolSettings) -> Sequence[SourceKind]:
    """The kinds of the extensions, for a program's settings."""
    defaults = {each.name: each.default for each in fields(given)}
    values = {
        setting: getattr(given, name) for name, setting in SETTINGS.items() if getattr(given, name) != defaults[name]
    }
    settings = Settings(_env_file=None, **values)
    return source_kinds(settings, selected(settings))


def merged(*outputs: Outputs) -> Outputs:
    """Merges `outputs`. Of validators or handlers with one name, the last is used. The last timeout is used."""
    validators = {name: each for given in outputs for name, each in given.validators.items()}
    handlers = {name: each for given in outputs for name, each in given.handlers.items()}
    return replace(outputs[-1], validators=validators, handlers=handlers)
