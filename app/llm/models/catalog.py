"""Which models there are, whose they are, and what each can do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
# What a model must be able to do for files of a type.
_SEEING: Mapping[str, Ability] = {IMAGE: "images", DOCUMENT: "documents"}


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a million tokens, in one currency of the operator's choice."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def cost_of(self, usage: Mapping[str, Any]) -> float:
        """What the usage of one round costs. `input_tokens` are those that no cache was used for. Where the provider
        has summarised meanwhile, its figures are not in those of the message.
        """
        iterations = usage.get("iterations") or ()
        return sum(map(self._of, (usage, *(each for each in iterations if each.get("type") == "compaction"))))

    def _of(self, figures: Mapping[str, Any]) -> float:
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        parts = (
            (self.input, "input_tokens"),
            (self.output, "output_tokens"),
            (read, "cache_read_input_tokens"),
            (write, "cache_creation_input_tokens"),
        )
        return sum(price * (figures.get(name) or 0) for price, name in parts) / _MILLION


@dataclass(frozen=True, slots=True)
class Model:
    """`upstream` is the provider's own id, where ours is another. `context_window` and `max_output` are in tokens.
    Where nobody said what it `can` do, nothing is refused. `fallbacks` are tried in order when it is down. With
    `think_tags` it writes what it thinks into its answer, and its server leaves it there.
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
    """A provider, the models it lists (a bare id says nothing of what it can do), and the prefixes of further ids that
    it takes unlisted.
    """

    provider: Provider
    models: Sequence[Model | str]
    prefixes: Sequence[str] = ()

    def listed(self) -> Iterable[Model]:
        return (Model(model) if isinstance(model, str) else model for model in self.models)


@dataclass(frozen=True, slots=True)
class Models:
    offers: Sequence[ProviderModels] = field(default_factory=list)

    def listed(self) -> Mapping[str, tuple[Model, str]]:
        """By id, with the name of the provider."""
        return {model.id: (model, offer.provider.name) for offer in self.offers for model in offer.listed()}

    def check(self, name: str) -> Model:
        """The model of that id or alias. Raises RequestRefused for one that nobody here serves."""
        found = self._find(name)
        if found is None:
            have = ", ".join(self.listed())
            raise RequestRefused(f"there is no model {name!r} here; there are: {have}", field="model")
        return found[1]

    def provider_for(self, name: str) -> Provider:
        """Raises PermanentError: a turn may be older than the present configuration."""
        found = self._find(name)
        if found is None:
            raise PermanentError("model_not_available", f"no provider for the model {name!r} is configured here")
        offer, model = found
        provider = ThinkTagFilter(offer.provider) if model.think_tags else offer.provider
        if unseen := [type for type, ability in _SEEING.items() if not model.supports(ability)]:
            provider = _Unseeing(provider, unseen)
        return provider if model.upstream is None else _Renamed(provider, model.upstream)

    def fallbacks(self, name: str) -> Sequence[str]:
        found = self._find(name)
        return () if found is None else found[1].fallbacks

    def all_support(self, name: str, ability: Ability) -> bool:
        """Whether it was said of the model, and of each that may take its place, that it can do this."""
        found = [self._find(id) for id in (name, *self.fallbacks(name))]
        return all(place is not None and ability in (place[1].can or ()) for place in found)

    def cost(self, name: str, usage: Mapping[str, Any]) -> float | None:
        """None where no prices are known."""
        found = self._find(name)
        return None if found is None or found[1].prices is None else found[1].prices.cost_of(usage)

    def _find(self, name: str) -> tuple[ProviderModels, Model] | None:
        """A listed model of any offer goes before an unlisted one."""
        for offer in self.offers:
            for model in offer.listed():
                if name == model.id or name in model.aliases:
                    return offer, model
        for offer in self.offers:
            if any(name.startswith(prefix) for prefix in offer.prefixes):
                return offer, Model(name)
        return None


@dataclass(frozen=True, slots=True)
class _Renamed(ProviderWrapper):
    """A provider that knows the model by another id."""

    model: str

    def adapt(self, request: ModelRequest) -> ModelRequest:
        return replace(request, model=self.model)


@dataclass(frozen=True, slots=True)
class _Unseeing(ProviderWrapper):
    """For a model that cannot see these types of files: those of tools, and of turns that another model answered."""

    types: Sequence[str]

    def adapt(self, request: ModelRequest) -> ModelRequest:
        return replace(request, messages=without_files(request.messages, self.types))
