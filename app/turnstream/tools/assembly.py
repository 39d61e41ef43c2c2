"""Assembly of the toolset of a server from its own tools, installed packages, a module and a tools file."""

import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from inspect import isawaitable, isclass, isfunction, ismethod, signature
from pathlib import Path
from typing import Any, Literal, TypeGuard

import structlog

from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.http_tools.addresses import Allowed
from turnstream.extensions.http_tools.request_tools import RequestToolRules, read_secrets
from turnstream.extensions.http_tools.tool import HttpTools
from turnstream.kit.signature import key_of
from turnstream.tools.declared.declarations import Declarations, errors_named, read_declarations
from turnstream.tools.outputs import Outputs
from turnstream.tools.policy import Policy
from turnstream.tools.tool import Tool, ToolSource, tools_of
from turnstream.tools.toolset import Toolset

log = structlog.get_logger(__name__)

GROUP = "turnstream.tools"

_REFERENCE = re.compile(r"[\w.]+:[\w.]+")


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The settings of tools. `environment` has the variables that `file` may name, and that factories get."""

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


@dataclass(frozen=True, slots=True)
class LoadedTools:
    """The tools that a reference leads to; where it leads to a Toolset, its sources and outputs too."""

    tools: Sequence[Tool]
    sources: Sequence[ToolSource] = ()
    outputs: Outputs = field(default_factory=Outputs)


@asynccontextmanager
async def open_toolset(
    own: Iterable[Tool], settings: ToolSettings, outputs: Outputs | None = None, *, connect_mcp: bool = True
) -> AsyncIterator[Toolset]:
    """Opens the toolset and the connections that its tools need; those to MCP servers only with `connect_mcp`. Raises
    ConfigError with a sentence for each setting that is wrong.
    """
    problems: list[str] = []
    declarations, allowed, reachable, secrets = Declarations(), Allowed(), Allowed(), read_secrets("", {})
    loaded: list[LoadedTools] = []
    with _collected(problems):
        declarations = read_declarations(settings.file, settings.environment) if settings.file else declarations
    with _collected(problems), errors_named("TURNSTREAM_HTTP_TOOLS_ALLOW:"):
        allowed = _allowed(settings.allowed)
    with _collected(problems), errors_named("TURNSTREAM_REQUEST_TOOLS_ALLOW:"):
        reachable = replace(_allowed(settings.request_tools_allowed), public=settings.request_tools == "public")
    with _collected(problems), errors_named("TURNSTREAM_TOOL_SECRETS:"):
        secrets = read_secrets(settings.tool_secrets or "", settings.environment)
    with _collected(problems), errors_named("TURNSTREAM_SIGNING_SECRET:"):
        if settings.signing_secret is not None:
            key_of(settings.signing_secret)
    async with AsyncExitStack() as stack:
        with _collected(problems):
            loaded += await load_installed(stack, settings.environment)
        with _collected(problems):
            if settings.reference:
                loaded.append(await load_toolset(settings.reference, stack, settings.environment))
        if problems:
            raise ConfigError(*problems)
        http = await stack.enter_async_context(
            HttpTools(
                allowed,
                settings.signing_secret,
                request_tools=RequestToolRules(reachable, settings.request_tools_timeout, secrets),
            )
        )
        tools = [
            *own,
            *(tool for each in loaded for tool in each.tools),
            *declarations.http_tools(lambda each: http.operator_tool(each.spec, each.policy, internal=each.internal)),
        ]
        tools = declarations.apply_policies(tools)
        with errors_named("the tools do not go together:"):
            sources = [source for each in loaded for source in each.sources]
            if declarations.servers:
                # Imported only when needed: the package takes a second.
                from turnstream.extensions.mcp.servers import McpServers  # noqa: PLC0415

                servers = McpServers(declarations.servers)
                sources.append(await stack.enter_async_context(servers) if connect_mcp else servers)
            toolset = Toolset(
                tools,
                settings.max_parallel,
                settings.max_result_chars,
                max_file_bytes=settings.max_file_bytes,
                outputs=_merged(*(each.outputs for each in loaded), outputs or Outputs()),
                sources=sources,
                declared=None if settings.request_tools == "off" else http.request_tool,
                max_request_tools=settings.max_request_tools,
                reserved=True,
            )
        yield toolset


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    """Adds the sentences of a ConfigError to `problems`, so that one start shows all of them."""
    try:
        yield
    except ConfigError as error:
        problems += error.args


def _allowed(entries: str | None) -> Allowed:
    return Allowed.of(entry.strip() for entry in (entries or "").split(",") if entry.strip())


# --- tools by reference ----------------------------------------------------------------------------------------------


async def load_toolset(reference: str, stack: AsyncExitStack, environment: Mapping[str, str]) -> LoadedTools:
    """Loads the tools of `package.module:attribute`. Context managers are entered on `stack`. Raises ConfigError.

    The attribute is a tool, several tools, a Toolset, or an object whose methods are tools; or a class, a function or
    an async function that makes one of these, or an async context manager of one. It is called without arguments, or
    with `environment` if that is its only parameter.
    """
    if not _REFERENCE.fullmatch(reference):
        raise ConfigError(f"TURNSTREAM_TOOLSET: {reference} must have the form package.module:attribute")
    folder = str(Path.cwd())
    if folder not in sys.path:  # `python -m` has it; the path of a console script does not
        sys.path.append(folder)
    return await _load(EntryPoint("", reference, GROUP), f"TURNSTREAM_TOOLSET: {reference}", stack, environment)


async def load_installed(stack: AsyncExitStack, environment: Mapping[str, str]) -> list[LoadedTools]:
    """Loads the tools of every entry point of the group, in the order of their names."""
    return [
        await _load(point, f"the entry point {point.name} of {GROUP}: {point.value}", stack, environment)
        for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)
    ]


async def _load(point: EntryPoint, source: str, stack: AsyncExitStack, environment: Mapping[str, str]) -> LoadedTools:
    """`source` begins the error texts."""
    try:
        found = point.load()
    except ImportError as error:
        raise ConfigError(f"{source} cannot be imported: {error}") from error
    except (AttributeError, TypeError, ValueError) as error:  # @tool raises the last two
        raise ConfigError(f"{source}: {error}") from error
    if isclass(found) or isfunction(found) or ismethod(found) or isinstance(found, partial):
        given = {"environment": environment} if "environment" in signature(found).parameters else {}
        try:
            signature(found).bind(**given)
        except TypeError:
            raise ConfigError(
                f"{source} cannot be called: it may have no parameter without a default but `environment`; is @tool"
                " missing?"
            ) from None
        try:
            found = found(**given)
            found = await found if isawaitable(found) else found
        except Exception as error:
            log.error("toolset.failed", source=source, exc_info=error)
            raise ConfigError(f"{source} raised {type(error).__name__}: {error}") from error
    if isinstance(found, AbstractAsyncContextManager):
        entered = await stack.enter_async_context(found)
        found = found if entered is None else entered
    if isinstance(found, Toolset):
        return LoadedTools(found.own, found.sources, found.outputs)
    tools: list[Tool] = []
    if _is_tool(found):
        tools = [found]
    elif not isinstance(found, Iterable):
        tools = tools_of(found)
    elif all(map(_is_tool, items := list(found))):
        tools = items
    if not tools:
        raise ConfigError(
            f"{source} must be a tool, a list of tools, a Toolset, or an object whose methods are tools; it is"
            f" {type(found).__name__}, and has none"
        )
    return LoadedTools(tools)


def _merged(*outputs: Outputs) -> Outputs:
    """Of two validators or handlers with one name the last counts; so does its timeout."""
    validators = {name: each for given in outputs for name, each in given.validators.items()}
    handlers = {name: each for given in outputs for name, each in given.handlers.items()}
    return replace(outputs[-1], validators=validators, handlers=handlers)


def _is_tool(found: Any) -> TypeGuard[Tool]:
    has_both = isinstance(getattr(found, "spec", None), ToolSpec) and isinstance(getattr(found, "policy", None), Policy)
    return has_both and callable(found)
