"""Tools from elsewhere: what a module, an installed package or an extension gives to a toolset."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from turnstream.domain.turns import ToolSpec
from turnstream.tools.outputs import Outputs
from turnstream.tools.tool import Offer, Tool, ToolSource


@dataclass(frozen=True, slots=True)
class LoadedTools:
    """`sources` list more tools, which come and go; the names of these begin with one of `prefixes`. `declared`
    makes the tool of a spec that came with a request, or raises ValueError. `offer` decides which tools of a
    request are deferred. `connections` are open while the toolset is used.
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
    """The tools that the operator declares. `with_policies` returns all tools of the server with the policies declared
    for them. Its second argument are the prefixes of tools that are listed later. It may raise ConfigError.
    """

    loaded: Sequence[LoadedTools] = ()
    with_policies: Callable[[Sequence[Tool], Sequence[str]], Sequence[Tool]] = _unchanged
