"""Opens the models that the settings and the file of models configure, with the providers of extensions."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from pydantic import SecretStr

from turnstream.config import Section, Settings, read_environment, variables
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension, left_out, model_apis, refused
from turnstream.libraries.providers.connect import connect_providers, import_adapter
from turnstream.libraries.providers.registry import read_registry
from turnstream.llm.models.api import CallOptions, ProviderSpec
from turnstream.llm.models.catalog import Models
from turnstream.llm.provider import MAX_EVENT_BYTES

PREFERRED = "claude-sonnet-5-5"
# Providers whose models come first in the list. The other providers follow in the order of their extensions and of the
# file.
_FIRST = ("anthropic", "openai", "gemini")


@asynccontextmanager
async def open_models(settings: Settings, extensions: Sequence[Extension]) -> AsyncIterator[Models]:
    with ExitStack() as stack:
        opened = [stack.enter_context(extension.interceptors(settings)) for extension in extensions]
        interceptors = [each for several in opened for each in several]
        longest_event = max(MAX_EVENT_BYTES, 2 * settings.max_reply_chars)
        senders = (extension.model_calls(settings) for extension in extensions)
        make_calls = next((each for each in senders if each is not None), None)
        options = CallOptions(interceptors, longest_event, make_calls)
        specs = usable_providers(settings, extensions)
        pools = (extension.pool(settings) for extension in extensions)
        pool = next((each for each in pools if each is not None), None)
        async with connect_providers(specs, options, pool) as offers:
            if settings.model is not None and not specs[0].api.stand_in:  # a gateway may use its own names
                offers.append(replace(offers[0], models=(), prefixes=[settings.model]))
            yield Models(offers)


def usable_providers(settings: Settings, extensions: Sequence[Extension]) -> Sequence[ProviderSpec]:
    """Returns the providers of the registry that can be used. Returns stand-ins only if there is no other provider.
    Raises ConfigError if there is no provider.
    """
    specs = all_providers(settings, extensions)
    pooled = any(extension.pool(settings) is not None for extension in extensions)
    for spec in specs:
        spec.api.check(spec.name)
        spec.api.verify(spec)
        if (len(spec.keys) > 1 or spec.limits) and not pooled:
            raise ConfigError(
                f"`{'limits' if spec.limits else 'keys'}` of [providers.{spec.name}] needs the extension rate_limits,"
                " which this server leaves out: add rate_limits to TURNSTREAM_EXTENSIONS."
            )
    if not specs:
        raise ConfigError(
            "No provider of models has its key: set ANTHROPIC_API_KEY or TURNSTREAM_MODELS_FILE, or add the extension"
            " of a provider to TURNSTREAM_EXTENSIONS, such as demo, whose model needs no key."
        )
    return [spec for spec in specs if not spec.api.stand_in] or specs


def all_providers(settings: Settings, extensions: Sequence[Extension]) -> Sequence[ProviderSpec]:
    environment = dict(read_environment())
    for extension in extensions:
        if extension.settings is not None:
            environment |= _given(settings.section(extension.settings), extension.settings.model_fields)
    apis = {each.name: each for each in model_apis(settings, extensions)}
    for extension in left_out(extensions):
        for each in extension.providers(settings):
            apis.setdefault(each.name, replace(each, catalog=None, check=partial(_refuse, extension)))
    specs = read_registry(settings.models_file, environment, list(apis.values()))
    return sorted(specs, key=lambda spec: _FIRST.index(spec.name) if spec.name in _FIRST else len(_FIRST))


def _refuse(extension: Extension, provider: str) -> None:
    raise refused(f"The provider {provider} of the file of models", extension)


def _given(section: Section, fields: Iterable[str]) -> Mapping[str, str]:
    """Returns the configured value of each environment variable. These values override the environment."""
    names = variables(type(section))
    values = {names[field]: getattr(section, field) for field in fields}
    secrets = {name: value.get_secret_value() for name, value in values.items() if isinstance(value, SecretStr)}
    return {name: "" if value is None else str(value) for name, value in (values | secrets).items()}


async def import_default_adapter(settings: Settings, extensions: Sequence[Extension]) -> None:
    """Imports the modules that the default model needs early, so that its first call does not wait for the import."""
    models = {model.id: spec.api for spec in usable_providers(settings, extensions) for model in spec.models}
    if api := models.get(default_model(settings, extensions)):
        await import_adapter(api)


def default_model(settings: Settings, extensions: Sequence[Extension]) -> str:
    """Returns the model for turns that name no model. Raises ConfigError if the settings do not determine it."""
    providers = usable_providers(settings, extensions)
    listed = [model.id for provider in providers for model in provider.models]
    if settings.model is not None:
        if providers[0].api.stand_in and settings.model not in listed:
            raise ConfigError(
                f"TURNSTREAM_MODEL must be one of {', '.join(listed)}: there is no model {settings.model!r} here."
            )
        return settings.model
    if not listed:
        raise ConfigError("TURNSTREAM_MODEL must name the default model: the registry lists none.")
    return PREFERRED if PREFERRED in listed else listed[0]


def served_model(settings: Settings, extensions: Sequence[Extension]) -> str:
    """Returns the default model. Raises ConfigError if a stand-in would answer real users without their knowledge."""
    model = default_model(settings, extensions)
    is_stand_in = usable_providers(settings, extensions)[0].api.stand_in
    if is_stand_in and settings.model is None and not settings.on_loopback:
        raise ConfigError(
            f"TURNSTREAM_HOST is {settings.host}, which other machines can reach, and no key of a provider is set: set"
            f" ANTHROPIC_API_KEY, OPENAI_API_KEY or TURNSTREAM_MODELS_FILE, or TURNSTREAM_MODEL={model} if the scripted"
            f" {model} is to answer."
        )
    return model


@dataclass(frozen=True, slots=True)
class ModelsOfSettings:
    """Chooses models as the command `serve` does."""

    settings: Settings
    extensions: Sequence[Extension]

    def default(self) -> str:
        return default_model(self.settings, self.extensions)

    def served(self) -> str:
        return served_model(self.settings, self.extensions)

    def open(self) -> AbstractAsyncContextManager[Models]:
        return open_models(self.settings, self.extensions)

    async def import_adapter(self) -> None:
        await import_default_adapter(self.settings, self.extensions)
