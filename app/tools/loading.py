"""Loading of tools by reference: from a module that a setting names, and from installed packages."""

import re
import sys
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from inspect import isawaitable, isclass, isfunction, ismethod, signature
from pathlib import Path
from typing import Any, TypeGuard

from app.domain.errors import ConfigError
from app.domain.turns import ToolSpec
from app.tools.policy import Policy
from app.tools.tool import Tool, tools_of

GROUP = "turnstream.tools"

_REFERENCE = re.compile(r"[\w.]+:[\w.]+")


async def load_toolset(reference: str, stack: AsyncExitStack) -> list[Tool]:
    """Loads the tools of `package.module:attribute`. Context managers are entered on `stack`. Raises ConfigError.

    The attribute is a tool, several tools, or an object whose methods are tools; or a class, a function or an async
    function without arguments that makes one of these, or an async context manager of one.
    """
    if not _REFERENCE.fullmatch(reference):
        raise ConfigError(f"TURNSTREAM_TOOLSET: {reference} must have the form package.module:attribute")
    folder = str(Path.cwd())
    if folder not in sys.path:  # `python -m` has it; the path of a console script does not
        sys.path.append(folder)
    return await _load(EntryPoint("", reference, GROUP), f"TURNSTREAM_TOOLSET: {reference}", stack)


async def load_installed(stack: AsyncExitStack) -> list[Tool]:
    """Loads the tools of every entry point of the group, in the order of their names."""
    tools: list[Tool] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        tools += await _load(point, f"the entry point {point.name} of {GROUP}: {point.value}", stack)
    return tools


async def _load(point: EntryPoint, source: str, stack: AsyncExitStack) -> list[Tool]:
    """`source` begins the error texts."""
    try:
        found = point.load()
    except ImportError as error:
        raise ConfigError(f"{source} cannot be imported: {error}") from error
    except (AttributeError, TypeError, ValueError) as error:  # @tool raises the last two
        raise ConfigError(f"{source}: {error}") from error
    if isclass(found) or isfunction(found) or ismethod(found) or isinstance(found, partial):
        try:
            signature(found).bind()
        except TypeError:
            raise ConfigError(f"{source} cannot be called without arguments; is @tool missing?") from None
        found = found()
        found = await found if isawaitable(found) else found
    if isinstance(found, AbstractAsyncContextManager):
        entered = await stack.enter_async_context(found)
        found = found if entered is None else entered
    tools = _tools_in(found)
    if not tools:
        raise ConfigError(f"{source} must be a tool, a list of tools, or an object whose methods are tools")
    return tools


def _tools_in(found: Any) -> list[Tool]:
    """The tools of a loaded object: none if it is no tool, or a list with anything else in it."""
    if _is_tool(found):
        return [found]
    if isinstance(found, Iterable):
        items = list(found)
        return items if all(map(_is_tool, items)) else []
    return tools_of(found)


def _is_tool(found: Any) -> TypeGuard[Tool]:
    has_both = isinstance(getattr(found, "spec", None), ToolSpec) and isinstance(getattr(found, "policy", None), Policy)
    return has_both and callable(found)
