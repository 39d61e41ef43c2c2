"""Tools of a module, an installed package or an extension, for a toolset."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from turnstream.domain.turns import ToolSpec
from turnstream.tools.outputs import Outputs
from turnstream.tools.tool import Offer, Tool, ToolSource


@dataclass(frozen=True, slots=True)
class LoadedTools:
    """`sources` list further tools, which may appear and disappear; the names of these tools begin with one of
    `prefixes`. `declared` makes the tool of a spec that a request declared, or raises ValueError. `offer` decides which
    tools of a request are deferred. `connections` are open during the use of the toolset.
    """

    tools: Sequence[Tool] = ()
    sources: Sequence[ToolSource] = ()
    outputs: Outputs = field(default_factory=Outputs)
    prefixes: Sequence[str] = ()
    declared: Callable[[ToolSpec], Tool] | None = None
    offer: Offer | None = None
    connections: Sequence[AbstractAsyncContextManager[object]] = ()


def _unchanged(tools: Sequence[Tool], _: Sequence[str]) -> Sequence[Tool]:
    return tools


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """The tools that the operator declares. `with_policies` returns all tools of the server with their declared
    policies. Its second argument has the prefixes of tools that sources list later. Raises ConfigError.
    """

    loaded: Sequence[LoadedTools] = ()
    with_policies: Callable[[Sequence[Tool], Sequence[str]], Sequence[Tool]] = _unchanged
