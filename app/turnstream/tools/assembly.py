"""Loads the tools of installed packages, and of the module that a setting names."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from inspect import isawaitable, isclass, isfunction, ismethod, signature
from pathlib import Path
from typing import Any, TypeGuard

import structlog

from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import ToolSpec
from turnstream.tools.policy import Policy
from turnstream.tools.sources import LoadedTools
from turnstream.tools.tool import Tool, tools_of
from turnstream.tools.toolset import Toolset

log = structlog.get_logger(__name__)

GROUP = "turnstream.tools"

_REFERENCE = re.compile(r"[\w.]+:[\w.]+")


async def load_toolset(reference: str, stack: AsyncExitStack, environment: Mapping[str, str]) -> LoadedTools:
    """Loads the tools of `package.module:attribute`. `stack` enters and exits context managers. Raises ConfigError.

    The attribute is a tool, several tools, a Toolset, or an object whose methods are tools. It may also be an async
    context manager that yields such a value, or a callable that returns any of these, perhaps asynchronously. The
    loader passes `environment` to a callable that has this parameter, and no other argument.
    """
    if not _REFERENCE.fullmatch(reference):
        raise ConfigError(f"TURNSTREAM_TOOLSET: {reference} must have the form package.module:attribute")
    folder = str(Path.cwd())
    if folder not in sys.path:  # `python -m` adds the folder; a console script does not
        sys.path.append(folder)
    return await _load(EntryPoint("", reference, GROUP), f"TURNSTREAM_TOOLSET: {reference}", stack, environment)


async def load_installed(stack: AsyncExitStack, environment: Mapping[str, str]) -> list[LoadedTools]:
    """Loads the tools of every entry point of the group, in the order of their names."""
    return [
        await _load(point, f"the entry point {point.name} of {GROUP}: {point.value}", stack, environment)
        for point in _installed_points()
    ]


@cache
def _installed_points() -> Sequence[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


async def _load(point: EntryPoint, source: str, stack: AsyncExitStack, environment: Mapping[str, str]) -> LoadedTools:
    """Loads the tools of one entry point. Error texts begin with `source`."""
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


def _is_tool(found: Any) -> TypeGuard[Tool]:
    has_both = isinstance(getattr(found, "spec", None), ToolSpec) and isinstance(getattr(found, "policy", None), Policy)
    return has_both and callable(found)
