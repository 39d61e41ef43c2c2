"""The toolset of a server: built-in tools, tools of installed packages and of a module, and declared tools."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError, errors_collected, errors_named
from turnstream.extension import Extension, left_out, refused
from turnstream.tools.assembly import load_installed, load_toolset
from turnstream.tools.outputs import Outputs
from turnstream.tools.sources import DeclaredTools, LoadedTools
from turnstream.tools.tool import Tool
from turnstream.tools.toolset import Toolset


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Limits for calls in parallel (of own tools, of tools of requests), characters of a result, bytes of a file."""

    max_parallel: int
    max_request_tools: int
    max_result_chars: int
    max_file_bytes: int


@asynccontextmanager
async def open_toolset(
    own: Iterable[Tool],
    reference: str | None,
    declare: Callable[[], DeclaredTools],
    limits: ToolLimits,
    environment: Mapping[str, str],
    outputs: Outputs | None = None,
    *,
    connect: bool = True,
) -> AsyncIterator[Toolset]:
    """Opens the toolset and, with `connect`, the connections of its sources. `reference` (`package.module:attribute`)
    refers to tools in Python. Raises ConfigError with a sentence for each wrong setting.
    """
    problems: list[str] = []
    declared, loaded = DeclaredTools(), list[LoadedTools]()
    async with AsyncExitStack() as stack:
        with errors_collected(problems):
            declared = declare()
        with errors_collected(problems):
            loaded += await load_installed(stack, environment)
        with errors_collected(problems):
            if reference:
                loaded.append(await load_toolset(reference, stack, environment))
        if problems:
            raise ConfigError(*problems)
        loaded += declared.loaded
        tools = [*own, *(tool for each in loaded for tool in each.tools)]
        tools = [*declared.with_policies(tools, [prefix for each in loaded for prefix in each.prefixes])]
        with errors_named("the tools do not go together:"):
            toolset = Toolset(
                tools,
                limits.max_parallel,
                limits.max_result_chars,
                max_file_bytes=limits.max_file_bytes,
                outputs=merged(*(each.outputs for each in loaded), outputs or Outputs()),
                sources=[source for each in loaded for source in each.sources],
                declared=next((each.declared for each in loaded if each.declared is not None), None),
                offers=[each.offer for each in loaded if each.offer is not None],
                max_request_tools=limits.max_request_tools,
                reserved=True,
            )
        if connect:
            for connection in (connection for each in loaded for connection in each.connections):
                await stack.enter_async_context(connection)
        yield toolset


def declared_tools(
    settings: Settings, extensions: Sequence[Extension], environment: Mapping[str, str]
) -> DeclaredTools:
    """Returns the declared tools, from the first extension that can declare tools. Without such an extension, a server
    has no tool sources. Raises ConfigError.
    """
    declare = next((each.declared_tools for each in extensions if each.declared_tools is not None), None)
    if declare is not None:
        return declare(settings, extensions, environment)
    for missing in (each for each in left_out(extensions) if each.declared_tools is not None):
        for extension in (each for each in extensions if each.tool_sources(settings)):
            raise refused(f"The extension {extension.name}", missing)
    return DeclaredTools()


def merged(*outputs: Outputs) -> Outputs:
    """Merges `outputs`. If validators or handlers have the same name, the last one applies, like the last timeout."""
    validators = {name: each for given in outputs for name, each in given.validators.items()}
    handlers = {name: each for given in outputs for name, each in given.handlers.items()}
    return replace(outputs[-1], validators=validators, handlers=handlers)
