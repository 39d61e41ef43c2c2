"""The tools of a turn: the server's by their names, and those that are declared with the request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from app.api.schemas.tools import ClientToolIn, HttpToolIn, ProviderToolIn, ToolIn
from app.domain.errors import RequestRefused
from app.domain.turns import HttpCall, ToolSpec
from app.tools.schemas import InputSchema
from app.tools.toolset import Toolset


@dataclass(frozen=True, slots=True)
class Chosen:
    """`provider` are definitions of tools that run at the provider, as JSON text."""

    specs: tuple[ToolSpec, ...] = ()
    provider: tuple[str, ...] = ()


@dataclass(slots=True)
class _Choosing:
    toolset: Toolset
    frozen: Mapping[str, ToolSpec]
    specs: dict[str, ToolSpec] = field(default_factory=dict)
    provider: dict[str, None] = field(default_factory=dict)

    def add(self, item: ToolIn) -> None:
        if isinstance(item, ProviderToolIn):
            self.provider[msgspec.json.encode(item.definition).decode()] = None
            return
        spec = self._named(item) if isinstance(item, str) else _declared(item)
        self.toolset.check(spec)
        if self.specs.get(spec.name, spec) != spec:
            raise ValueError(f"two tools are called {spec.name}")
        self.specs[spec.name] = spec

    def _named(self, name: str) -> ToolSpec:
        (spec,) = self.toolset.specs([name])
        before = self.frozen.get(name)
        return spec if before is None or before.client or before.http else before


def choose(items: Sequence[ToolIn] | None, toolset: Toolset, frozen: Sequence[ToolSpec], field: str) -> Chosen:
    """The tools of `items`, or all that the server has. What was `frozen` under a name stays as it was.

    Raises RequestRefused, which names the item of `field`.
    """
    choosing = _Choosing(toolset, {spec.name: spec for spec in frozen})
    wanted: Sequence[ToolIn] = toolset.names if items is None else items
    for place, item in enumerate(wanted):
        try:
            choosing.add(item)
        except ValueError as error:
            raise RequestRefused(str(error), field=f"{field}.{place}") from None
    return Chosen(tuple(choosing.specs.values()), tuple(choosing.provider))


def _declared(item: ClientToolIn | HttpToolIn) -> ToolSpec:
    """Raises ValueError for a schema that is none."""
    schema = InputSchema.checked(msgspec.json.encode(item.input_schema).decode()).text
    if isinstance(item, ClientToolIn):
        return ToolSpec(item.name, item.description, schema, client=True)
    http = HttpCall(item.url, item.timeout, item.headers)
    return ToolSpec(item.name, item.description, schema, item.read_only, item.retry_safe, http=http)
