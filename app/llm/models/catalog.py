"""The catalog of models: their providers, abilities, prices and fallbacks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal

from app.domain.errors import PermanentError, RequestRefused
from app.domain.kinds import DOCUMENT, IMAGE
from app.llm.conversation.attachments import without_files
from app.llm.models.think_tags import ThinkTagFilter
from app.llm.provider import ModelRequest, Provider, ProviderWrapper

Ability = Literal[
    "tools",
    "parallel_tools",
    "thinking",
    "images",
    "documents",
    "structured_output",
    "caching",
    "context_editing",
    "compaction",
]

_MILLION = 1_000_000
# The ability that a model needs for files of a type.
_NEEDED: Mapping[str, Ability] = {IMAGE: "images", DOCUMENT: "documents"}


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens, in the currency that the operator chose."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def cost_of(self, usage: Mapping[str, Any]) -> float:
        """Returns the cost of a round's usage. `input_tokens` are those without a cache. The figures of summaries that
        the provider wrote meanwhile are in `iterations`, and not in those of the message.
        """
        iterations = usage.get("iterations") or ()
        prices = {
            "input_tokens": self.input,
            "output_tokens": self.output,
            "cache_read_input_tokens": self.input if self.cache_read is None else self.cache_read,
            "cache_creation_input_tokens": self.input if self.cache_write is None else self.cache_write,
        }
        figures = (usage, *(each for each in iterations if each.get("type") == "compaction"))
        paid = (
            Decimal(str(price)) * Decimal(str(each.get(name) or 0))
            for each in figures
            for name, price in prices.items()
        )
        return float(sum(paid, Decimal()) / _MILLION)


@dataclass(frozen=True, slots=True)
class Model:
    """`upstream` is the provider's own id for the model, where it differs. `context_window` and `max_output` are in
    tokens. Without `can`, its abilities are unknown and nothing is refused. `fallbacks` are tried in order when it is
    down. With `think_tags` its answers contain its thoughts in <think> tags.
    """

    id: str
    upstream: str | None = None
    context_window: int | None = None
    max_output: int | None = None
    can: frozenset[str] | None = None
    prices: Prices | None = None
    aliases: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    think_tags: bool = False

    def supports(self, ability: Ability) -> bool:
        return self.can is None or ability in self.can


@dataclass(frozen=True, slots=True)
class ProviderModels:
    """A provider, its listed models (a bare id has unknown abilities), and the prefixes of ids that it accepts
    unlisted.
    """

    provider: Provider
    models: Sequence[Model | str]
    prefixes: Sequence[str] = ()

    def listed(self) -> Iterable[Model]:
        return (Model(model) if isinstance(model, str) else model for model in self.models)


@dataclass(frozen=True, slots=True)
class Models:
    providers: Sequence[ProviderModels] = field(default_factory=list)

    def listed(self) -> Mapping[str, tuple[Model, str]]:
        """Returns the models by id, with the name of their provider."""
        return {model.id: (model, entry.provider.name) for entry in self.providers for model in entry.listed()}

    def check(self, name: str) -> Model:
        """Returns the model of that id or alias. Raises RequestRefused if no provider serves it."""
        found = self._find(name)
        if found is None:
            known = ", ".join(self.listed())
            raise RequestRefused(f"`model` must be one of {known}: there is no model {name!r} here.", field="model")
        return found[1]

    def provider_for(self, name: str) -> Provider:
        """Raises PermanentError if no provider serves it: a turn may be older than the present configuration."""
        found = self._find(name)
        if found is None:
            raise PermanentError("model_not_available", f"No provider of the model {name!r} is configured here.")
        entry, model = found
        provider = ThinkTagFilter(entry.provider) if model.think_tags else entry.provider
        if unreadable := [type for type, ability in _NEEDED.items() if not model.supports(ability)]:
            provider = _WithoutFiles(provider, unreadable)
        return provider if model.upstream is None else _WithUpstreamId(provider, model.upstream)

    def fallbacks(self, name: str) -> Sequence[str]:
        found = self._find(name)
        return () if found is None else found[1].fallbacks

    def all_support(self, name: str, ability: Ability) -> bool:
        """True if the ability is declared for the model and for each of its fallbacks."""
        found = [self._find(id) for id in (name, *self.fallbacks(name))]
        return all(entry is not None and ability in (entry[1].can or ()) for entry in found)

    def cost(self, name: str, usage: Mapping[str, Any]) -> float | None:
        """Returns None if the model has no prices."""
        found = self._find(name)
        return None if found is None or found[1].prices is None else found[1].prices.cost_of(usage)

    def _find(self, name: str) -> tuple[ProviderModels, Model] | None:
        """Finds the model, first among the listed models of all providers, then by prefix."""
        for entry in self.providers:
            for model in entry.listed():
                if name == model.id or name in model.aliases:
                    return entry, model
        for entry in self.providers:
            if any(name.startswith(prefix) for prefix in entry.prefixes):
                return entry, Model(name)
        return None


@dataclass(frozen=True, slots=True)
class _WithUpstreamId(ProviderWrapper):
    """A provider that has another id for the model."""

    model: str

    def adapt(self, request: ModelRequest) -> ModelRequest:
        return replace(request, model=self.model)


@dataclass(frozen=True, slots=True)
class _WithoutFiles(ProviderWrapper):
    """A provider of a model that cannot read these types of files, which tools return and other models could read."""

    types: Sequence[str]

    def adapt(self, request: ModelRequest) -> ModelRequest:
        return replace(request, messages=without_files(request.messages, self.types))
