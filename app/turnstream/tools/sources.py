"""Tools that a module, an installed package or an extension supplies to a toolset."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from turnstream.domain.turns import ToolSpec
from turnstream.tools.outputs import Outputs
from turnstream.tools.tool import Offer, Tool, ToolSource


@dataclass(frozen=True, slots=True)
class LoadedTools:
    """Tools of one supplier. `sources` list additional tools, which may appear and disappear; the names of these tools
    begin with one of `prefixes`. `declared` makes a tool from a spec that a request declared, or raises ValueError.
    `offer` decides which tools of a request are deferred. `connections` are open while the toolset is used.
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
    policies, or raises ConfigError. Its second argument has the name prefixes of the tools that sources list later.
    """

    loaded: Sequence[LoadedTools] = ()
    with_policies: Callable[[Sequence[Tool], Sequence[str]], Sequence[Tool]] = _unchanged
