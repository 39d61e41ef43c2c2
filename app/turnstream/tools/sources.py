"""Tools from elsewhere: what a module, an installed package or a kind of source gives to a toolset."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from turnstream.domain.turns import ToolSpec
from turnstream.tools.declared.declarations import Declarations
from turnstream.tools.declared.tables import PolicyTable
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


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of tool source. Its tables in the tools file are `[name.NAME]`, with the keys of `table`; None for
    a kind without tables. `make` gets the content of the file and connects to nothing. It raises ConfigError with all
    sentences at once.
    """

    name: str
    table: type[PolicyTable] | None
    make: Callable[[Declarations], LoadedTools]
