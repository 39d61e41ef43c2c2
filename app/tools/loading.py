"""Tools of the embedding program: named by a setting, or offered by installed packages."""

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
    """The tools of `package.module:attribute`; what has to be closed again is given to `stack`. Raises ConfigError.

    The attribute is a tool, several, or an object whose methods are tools; or it is made without arguments, by a class
    or a function that may be async or an async context manager.
    """
    if not _REFERENCE.fullmatch(reference):
        raise ConfigError(f"TURNSTREAM_TOOLSET: {reference} is not of the form package.module:attribute")
    here = str(Path.cwd())
    if here not in sys.path:  # as for `python -m`: a program that is started by its script does not look there
        sys.path.append(here)
    return await _tools_at(EntryPoint("", reference, GROUP), f"TURNSTREAM_TOOLSET: {reference}", stack)


async def load_installed(stack: AsyncExitStack) -> list[Tool]:
    """The same for every entry point of the group, by name."""
    tools: list[Tool] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        tools += await _tools_at(point, f"the entry point {point.name} of {GROUP}: {point.value}", stack)
    return tools


async def _tools_at(point: EntryPoint, where: str, stack: AsyncExitStack) -> list[Tool]:
    try:
        found = point.load()
    except ImportError as error:
        raise ConfigError(f"{where} cannot be imported: {error}") from error
    except (AttributeError, TypeError, ValueError) as error:  # the last two are what @tool refuses
        raise ConfigError(f"{where}: {error}") from error
    tools = _listed(await _made(found, where, stack))
    if not tools:
        raise ConfigError(f"{where} is no tool and has none")
    return tools


async def _made(found: Any, where: str, stack: AsyncExitStack) -> Any:
    if isclass(found) or isfunction(found) or ismethod(found) or isinstance(found, partial):
        try:
            signature(found).bind()
        except TypeError:
            raise ConfigError(f"{where} cannot be called without arguments; is @tool missing?") from None
        found = found()
        found = await found if isawaitable(found) else found
    if isinstance(found, AbstractAsyncContextManager):
        entered = await stack.enter_async_context(found)
        found = found if entered is None else entered
    return found


def _listed(found: Any) -> list[Tool]:
    """Nothing for what is no tool, and for a list where something is none."""
    if _is_tool(found):
        return [found]
    if isinstance(found, Iterable):
        items = list(found)
        return items if all(map(_is_tool, items)) else []
    return tools_of(found)


def _is_tool(found: Any) -> TypeGuard[Tool]:
    has_both = isinstance(getattr(found, "spec", None), ToolSpec) and isinstance(getattr(found, "policy", None), Policy)
    return has_both and callable(found)
