"""The catalog of models: their providers, abilities, prices and fallbacks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from turnstream.domain.errors import MODEL_NOT_AVAILABLE, ConfigError, PermanentError, RequestRefused
from turnstream.domain.kinds import DOCUMENT, IMAGE
from turnstream.domain.rounds import Prices
from turnstream.domain.turns import Preset
from turnstream.llm.conversation.attachments import without_files
from turnstream.llm.parameters import COMMON, Parameter
from turnstream.llm.provider import ModelRequest, Provider, ProviderWrapper

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

# The ability that a model needs for files of a type.
NEEDED_ABILITY: Mapping[str, Ability] = {IMAGE: "images", DOCUMENT: "documents"}


@dataclass(frozen=True, slots=True)
class Model:
    """`upstream` is the provider's own id of the model, if different. `context_window` and `max_output` are in tokens.
    If `can` is None, its abilities are unknown and nothing is refused. `fallbacks` are called in order when the model
    is down. With `think_tags`, its answers contain its thoughts in <think> tags. `refuses` are parameters of its
    provider that this model refuses. With `prefill`, it continues an assistant message at the end of a request. A model
    with a `preset` is an agent: another name for the preset's model. If `stores` is false, answers to programs are
    deleted after delivery. `options` are additional options for its API.
    """

    id: str
    upstream: str | None = None
    context_window: int | None = None
    max_output: int | None = None
    can: frozenset[str] | None = None
    prices: Prices | None = None
    currency: str | None = None  # of the prices
    aliases: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    think_tags: bool = False
    refuses: frozenset[str] = frozenset()
    prefill: bool = False
    preset: Preset | None = None
    stores: bool = True
    options: Mapping[str, bool | str] = field(default_factory=dict)

    def supports(self, ability: Ability) -> bool:
        return self.can is None or ability in self.can

    def objection(self, name: str, value: Any) -> tuple[str, str] | None:
        """Returns the unsupported member of a valid parameter, with the required change; None if there is none."""
        match name, value:
            case "thinking", {"type": type} if type != "disabled" and not self.supports("thinking"):
                return name, f"must be left out: model {self.id} does not support thinking"
            case "output_config", {"format": _} if not self.supports("structured_output"):
                return "output_config.format", f"must be left out: model {self.id} does not support structured output"
            case "max_tokens", int() if self.max_output is not None and value > self.max_output:
                return name, f"must be at most {self.max_output:,}, the longest reply of model {self.id}"
            case _:
                return None


@dataclass(frozen=True, slots=True)
class ProviderModels:
    """A provider, its listed models (the abilities of a bare id are unknown), the prefixes of unlisted ids that it
    accepts, and the parameters of its API. `without_tags` wraps the provider of a model with `think_tags`.
    """

    provider: Provider
    models: Sequence[Model | str]
    prefixes: Sequence[str] = ()
    parameters: Sequence[Parameter] = COMMON
    without_tags: Callable[[Provider], Provider] | None = None

    def listed(self) -> Iterable[Model]:
        return (Model(model) if isinstance(model, str) else model for model in self.models)


@dataclass(frozen=True, slots=True)
class Models:
    providers: Sequence[ProviderModels] = field(default_factory=list)

    def listed(self) -> Mapping[str, tuple[Model, str]]:
        """Returns the listed models by id, each with the name of its provider."""
        return {model.id: (model, entry.provider.name) for entry in self.providers for model in entry.listed()}

    def with_presets(self, presets: Mapping[str, Preset], default: str) -> "Models":
        """Returns the models together with the agents, by name. `default` is the model of a preset that names none.
        Raises ConfigError.
        """
        if not presets:
            return self
        providers = list(self.providers)
        for name, preset in presets.items():
            if self._find_listed(name) is not None:
                raise ConfigError(f"The agent {name} must have another name: a model has this one.")
            if (found := self._find(preset.model or default)) is None:
                raise ConfigError(f"The agent {name}: `model`: there is no model {preset.model!r} here.")
            entry, model = found
            upstream, named = model.upstream or model.id, replace(preset, model=model.id)
            agent = replace(model, id=name, upstream=upstream, aliases=(), preset=named)
            place = next(place for place, each in enumerate(self.providers) if each is entry)
            providers[place] = replace(providers[place], models=[*providers[place].models, agent])
        return Models(providers)

    def preset(self, name: str) -> Preset | None:
        """Returns the preset of an agent; None for any other name."""
        found = self._find_listed(name)
        return None if found is None else found[1].preset

    def behind(self, name: str) -> Model:
        """Returns the model behind a name: the named model, or the model of the named agent. Raises RequestRefused."""
        model = self.check(name)
        return model if model.preset is None or model.preset.model is None else self.check(model.preset.model)

    def check(self, name: str) -> Model:
        """Returns the model with that id or alias. Raises RequestRefused if no provider serves it."""
        found = self._find(name)
        if found is None:
            known = ", ".join(self.listed())
            detail = f"`model` must be one of {known}: there is no model {name!r} here."
            raise RequestRefused(detail, field="model", code="unknown_model")
        return found[1]

    def provider_for(self, name: str) -> Provider:
        """Returns the provider of a model. Raises PermanentError if none serves it: turns may outlive their models."""
        found = self._find(name)
        if found is None:
            raise PermanentError(MODEL_NOT_AVAILABLE, f"No provider of the model {name!r} is configured here.")
        entry, model = found
        without_tags = entry.without_tags if model.think_tags else None
        provider = entry.provider if without_tags is None else without_tags(entry.provider)
        if unreadable := [type for type, ability in NEEDED_ABILITY.items() if not model.supports(ability)]:
            provider = _WithoutFiles(provider, unreadable)
        if model.upstream is None and not model.options:
            return provider
        return _AsListed(provider, model.upstream, model.options)

    def provider_name(self, name: str) -> str | None:
        """Returns the name of the model's provider; None if no provider serves the model."""
        found = self._find(name)
        return None if found is None else found[0].provider.name

    def label(self, name: str) -> str:
        """Returns the id of a listed model; `other` for other names, because clients may send any number of them."""
        found = self._find_listed(name)
        return found[1].id if found else "other"

    def fallbacks(self, name: str) -> Sequence[str]:
        found = self._find(name)
        return () if found is None else found[1].fallbacks

    def parameters(self, name: str) -> Sequence[Parameter]:
        """Returns the parameters that the model accepts."""
        found = self._find(name)
        if found is None:
            return ()
        entry, model = found
        return [parameter for parameter in entry.parameters if _refusal(parameter, model) is None]

    def refusal(self, name: str, parameter: str) -> str | None:
        """Returns why the model refuses a parameter of its provider's API, or None."""
        found = self._find(name)
        known = {each.name: each for each in found[0].parameters} if found else {}
        return _refusal(known[parameter], found[1]) if found and parameter in known else None

    def fitting(self, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those `params` that the model accepts. `max_tokens` is lowered to the longest reply of the model."""
        found = self._find(name)
        if found is None:
            return dict(params)
        model, most = found[1], found[1].max_output
        known = {parameter.name: parameter for parameter in self.parameters(name)}
        given = dict(params)
        if most is not None and isinstance(tokens := given.get("max_tokens"), int):
            given["max_tokens"] = min(tokens, most)
        return {
            each: value
            for each, value in given.items()
            if each in known and known[each].accepts(value) and model.objection(each, value) is None
        }

    def all_support(self, name: str, ability: Ability) -> bool:
        """True if the model and each of its fallbacks declare the ability."""
        found = [self._find(id) for id in (name, *self.fallbacks(name))]
        return all(entry is not None and ability in (entry[1].can or ()) for entry in found)

    def cost(self, name: str, usage: Mapping[str, Any]) -> float | None:
        """Returns the cost of the usage; None if the model has no prices."""
        prices = self.prices(name)
        return None if prices is None else prices.cost_of(usage)

    def prices(self, name: str) -> Prices | None:
        found = self._find(name)
        return None if found is None else found[1].prices

    def longest_reply(self, name: str) -> int | None:
        """Returns the maximum number of tokens of a reply; None if unknown."""
        found = self._find(name)
        return None if found is None else found[1].max_output

    def _find(self, name: str) -> tuple[ProviderModels, Model] | None:
        """Finds the model, first among the listed models of all providers, then by prefix."""
        if found := self._find_listed(name):
            return found
        for entry in self.providers:
            if any(name.startswith(prefix) for prefix in entry.prefixes):
                return entry, Model(name)
        return None

    def _find_listed(self, name: str) -> tuple[ProviderModels, Model] | None:
        for entry in self.providers:
            for model in entry.models:
                if isinstance(model, str):
                    if name == model:
                        return entry, Model(model)
                elif name == model.id or name in model.aliases:
                    return entry, model
        return None


def _refusal(parameter: Parameter, model: Model) -> str | None:
    if parameter.name in model.refuses:
        return "the file of models lists it among those that this model refuses"
    return parameter.why if parameter.is_refused_by(model.upstream or model.id) else None


@dataclass(frozen=True, slots=True)
class _AsListed(ProviderWrapper):
    """A wrapper that sends the provider's own id of the model, and the model's `options`."""

    model: str | None
    options: Mapping[str, bool | str]

    def adapt(self, request: ModelRequest) -> ModelRequest:
        return replace(request, model=self.model or request.model, options=self.options)


@dataclass(frozen=True, slots=True)
class _WithoutFiles(ProviderWrapper):
    """A wrapper that removes files of these types: the model cannot read them, but tools may return them."""

    types: Sequence[str]

    def adapt(self, request: ModelRequest) -> ModelRequest:
        return replace(request, messages=without_files(request.messages, self.types))
