"""APIs of models. Each API is part of an extension."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from turnstream.llm.interceptor import Interceptor
from turnstream.llm.models.catalog import Model
from turnstream.llm.parameters import COMMON, Parameter
from turnstream.llm.provider import MAX_EVENT_BYTES, OwnedProvider, Provider

# Makes the sender of an adapter's calls on top of the network client (`libraries/providers/transport/calls.py`).
MakeCalls = Callable[[httpx2.AsyncClient], Any]
# Makes one provider out of the clients for its keys (`libraries/providers/connect.py`), in the order of the keys.
MakePool = Callable[["ProviderSpec", Sequence[Any]], Provider]


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of model calls. Requests pass through `interceptors`. Then the sender from `make_calls`, or by default
    the provider's SDK, sends them. An event of more than `max_event_bytes` ends an answer.
    """

    interceptors: Sequence[Interceptor] = ()
    max_event_bytes: int = MAX_EVENT_BYTES
    make_calls: MakeCalls | None = None


def _is_usable(_: object) -> None:
    """The check of an API that has no requirements."""


@dataclass(frozen=True, slots=True)
class ModelApi:
    """An API of models. `name` is the value of `api` in the table of a provider in the file of models.

    `connect` makes the adapter to a provider: once, in a thread, at the first call. `module` is a module of the adapter
    that is slow to import: a server imports it early, as soon as it listens. `check` gets the name of a provider that
    has its key, and raises ConfigError if no call can succeed here, for example because a package is missing; `verify`
    gets the provider's table.

    `parameters` are all parameters that a turn may have. `quirks` maps each allowed value of a provider's `quirks` to
    the parameters that such a server accepts; the first value is the default. `own_members` are members of a request
    that the adapter sets itself; if it is None, a provider accepts no `params`. `options` are the allowed keys of a
    provider's `options`, `model_options` the allowed keys of a model's `options`, with their values.

    `catalog` is the API's own file of models. The providers of a `stand_in` are used while no other provider has its
    key. If `prefills` is true, a model may have `prefill`. `without_tags` wraps the provider of a model with
    `think_tags`, so that tagged thoughts become blocks.
    """

    name: str
    connect: "Callable[[ProviderSpec, CallOptions], OwnedProvider]"
    module: str | None = None
    parameters: Sequence[Parameter] = COMMON
    quirks: Mapping[str, Sequence[Parameter]] = field(default_factory=dict)
    own_members: frozenset[str] | None = None
    catalog: Path | None = None
    check: Callable[[str], None] = _is_usable
    stand_in: bool = False
    prefills: bool = True
    without_tags: Callable[[Provider], Provider] | None = None
    options: Sequence[str] = ()
    model_options: Mapping[str, Sequence[bool | str]] = field(default_factory=dict)
    verify: "Callable[[ProviderSpec], None]" = _is_usable

    def parameters_of(self, quirks: str | None, further: Sequence[str] = ()) -> Sequence[Parameter]:
        """Returns the parameters of a server with the named quirks, and the `further` parameters from its operator."""
        known = self.quirks[quirks] if quirks is not None else next(iter(self.quirks.values()), self.parameters)
        return [*(Parameter(name, Any, "parameter of this server") for name in sorted(further)), *known]


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """The configuration of a usable provider, with its models. `params` are parameters that the operator adds. `keys`
    are all keys if there are several. `limits` are the rates per minute of each key, if configured.
    """

    name: str
    api: ModelApi
    key: str | None
    base_url: str | None
    quirks: str | None
    params: tuple[str, ...]
    headers: Mapping[str, str]
    prefixes: tuple[str, ...]
    client_certificate: str | None
    models: tuple[Model, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The parameters that this provider accepts."""
        return self.api.parameters_of(self.quirks, self.params)


def guarded_names(apis: Sequence[ModelApi]) -> frozenset[str]:
    return frozenset(parameter.name for api in apis for parameter in api.parameters if parameter.guarded)


def schemas_by_name(apis: Sequence[ModelApi]) -> dict[str, Any]:
    """Returns for each parameter of all APIs the JSON Schema of its values. The description ends with the names of the
    APIs. Excludes stand-ins, and APIs that share their table with another API.
    """
    found: dict[str, Any] = {}
    tables = {id(api.parameters): api for api in reversed(apis) if not api.stand_in}
    for api in (each for each in apis if tables.get(id(each.parameters)) is each):
        for parameter in api.parameters:
            schema, before = parameter.schema(), found.get(parameter.name, {})
            if "enum" in before:
                schema = {**schema, "enum": sorted({*before["enum"], *schema["enum"]})}
            note = " (the operator must allow it)" if parameter.guarded else ""
            names = f"{before['description'].rpartition(': ')[2]}, {api.name}" if before else api.name
            found[parameter.name] = {**schema, "description": f"{parameter.description}{note}: {names}"}
    return dict(sorted(found.items()))
