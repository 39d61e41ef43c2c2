"""The models of the settings, with interceptors for recordings and chaos."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import replace

import structlog

from turnstream.config import Settings, read_environment
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ConfigError, ProviderError, RequestRefused
from turnstream.domain.kinds import TEXT
from turnstream.extensions.demo.provider import DEMO, DemoProvider
from turnstream.lab.chaos import ChaosInterceptor, ChaosPlan
from turnstream.lab.recordings import RecordingInterceptor, Recordings
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.llm.models.connect import connect_providers, import_adapter
from turnstream.llm.models.registry import ProviderSpec, read_registry
from turnstream.llm.provider import Message, ModelRequest
from turnstream.llm.transport.interceptor import CallPublisher, Interceptor

log = structlog.get_logger(__name__)

PREFERRED = "claude-sonnet-5-5"
_PING = 30.0  # seconds


@asynccontextmanager
async def open_models(settings: Settings) -> AsyncIterator[Models]:
    interceptors: list[Interceptor] = []
    if settings.chaos:
        note = "model calls are made to fail on purpose: never in production"
        log.critical("model.chaos", note=note, share=settings.chaos, seed=settings.chaos_seed)
        interceptors.append(ChaosInterceptor(ChaosPlan(settings.chaos_seed, settings.chaos)))
    with nullcontext() if settings.record is None else Recordings(settings.record) as recordings:
        if recordings is not None:
            # After the chaos in this list: a recording holds the bytes that an adapter got, chaos included.
            every = settings.record_turns == "all"
            interceptors.append(
                RecordingInterceptor(recordings, lambda call: every or (call is not None and call.record))
            )
        async with connect_providers(
            _providers(settings),
            interceptors,
            max_event_bytes=settings.max_event_bytes,
            direct=settings.model_calls == "direct",
        ) as offers:
            if not offers:
                log.warning("model.demo", note="no key of a provider is set: answers are a script's, not a model's")
                offers.append(_demo(settings.demo_delay, interceptors))
            elif settings.model is not None:  # a gateway may have its own names
                offers.append(replace(offers[0], models=(), prefixes=[settings.model]))
            yield Models(offers)


def _providers(settings: Settings) -> Sequence[ProviderSpec]:
    """The providers of the registry. A value of the settings takes precedence over the environment."""
    keys = {"ANTHROPIC_API_KEY": settings.anthropic_api_key, "OPENAI_API_KEY": settings.openai_api_key}
    urls = {"ANTHROPIC_BASE_URL": settings.anthropic_base_url, "OPENAI_BASE_URL": settings.openai_base_url}
    secrets = {name: key.get_secret_value() if key else "" for name, key in keys.items()}
    environment = {**read_environment(), **secrets, **{name: url or "" for name, url in urls.items()}}
    return read_registry(settings.models_file, environment)


async def ping_providers(settings: Settings) -> Mapping[str, str]:
    """Makes the shortest call to each provider. Returns its error by the provider's name, an empty text for none."""
    specs = _providers(settings)
    default, answers = default_model(settings), dict[str, str]()
    async with connect_providers(specs) as offers:
        for number, (spec, offer) in enumerate(zip(specs, offers, strict=True)):
            listed = [model.id for model in spec.models]
            is_its_own = default in listed or (number == 0 and settings.model is not None)
            model = default if is_its_own else next(iter(listed), None)
            answers[spec.name] = "it has no model in the file of models" if model is None else await _ping(offer, model)
    return answers


async def _ping(offer: ProviderModels, model: str) -> str:
    # OpenAI's newer API takes no smaller limit.
    request = ModelRequest(model, (Message("user", (Block(0, 0, 0, TEXT, "ping"),)),), params={"max_tokens": 16})
    models = Models([replace(offer, prefixes=[model])])
    try:
        async with asyncio.timeout(_PING), aclosing(models.provider_for(model).stream(request)) as stream:
            async for _ in stream:
                pass
    except TimeoutError:
        return f"{model} did not answer within {_PING:g} seconds"
    except ProviderError as error:
        return f"{model}: {error}"
    return ""


@asynccontextmanager
async def offline_models(settings: Settings, interceptors: Sequence[Interceptor]) -> AsyncIterator[Models]:
    """Those of the settings, as if every key were there: `interceptors` answer in the place of all networks."""
    known = {spec.name for spec in _providers(settings)}
    specs = read_registry(settings.models_file, _Complete(read_environment()))
    for api in {spec.api for spec in specs}:  # an import in the middle of a replayed call would count as its silence
        await import_adapter(api)
    async with connect_providers(specs, interceptors) as offers:
        if settings.model is not None and offers:
            first = next((offer for offer in offers if offer.provider.name in known), offers[0])
            offers.append(replace(first, models=(), prefixes=[settings.model]))
        yield Models([*offers, _demo(0.0, interceptors)])


async def import_default_adapter(settings: Settings) -> None:
    """Imports what the first call of the default model needs, so that it need not wait for that."""
    models = {model.id: spec.api for spec in _providers(settings) for model in spec.models}
    if api := models.get(default_model(settings)):
        await import_adapter(api)


def _demo(delay: float, interceptors: Sequence[Interceptor]) -> ProviderModels:
    """The demo holds no connection, so nobody has to close it."""
    return ProviderModels(CallPublisher(DemoProvider(delay, interceptors)), [DEMO])


class _Complete(dict[str, str]):
    """An environment in which every missing key and address has a value that leads nowhere."""

    def get(self, name: str, _default: object = None) -> str:
        return super().get(name) or "http://offline.invalid"


def default_model(settings: Settings) -> str:
    """The model of turns that name none. Raises ConfigError where the settings do not determine it."""
    providers = _providers(settings)
    if not providers:
        return default_among(Models([ProviderModels(DemoProvider(), [DEMO])]), settings.model)
    if settings.model is not None:
        return settings.model
    listed = [model.id for provider in providers for model in provider.models]
    if not listed:
        raise ConfigError("TURNSTREAM_MODEL must name the default model: the registry lists none.")
    return PREFERRED if PREFERRED in listed else listed[0]


def served_model(settings: Settings) -> str:
    """The same for a server. Raises ConfigError too where the demo would answer others, who take it for a model."""
    model = default_model(settings)
    if model == DEMO and settings.model is None and not settings.on_loopback:
        raise ConfigError(
            f"TURNSTREAM_HOST is {settings.host}, which other machines can reach, and no key of a provider is set: set"
            " ANTHROPIC_API_KEY, OPENAI_API_KEY or TURNSTREAM_MODELS_FILE, or TURNSTREAM_MODEL=demo if the scripted"
            " demo is to answer."
        )
    return model


def check_chosen(models: Models, settings: Settings) -> None:
    """Raises ConfigError for a setting that names a model which is not there."""
    if settings.summary_model is not None:
        try:
            models.check(settings.summary_model)
        except RequestRefused as error:
            raise ConfigError(error.detail.replace("`model`", "TURNSTREAM_SUMMARY_MODEL", 1)) from None


def default_among(models: Models, name: str | None) -> str:
    """The same for given models. Raises ConfigError where `name` is none of them."""
    if name is None:
        return next(iter(models.listed()))
    try:
        models.check(name)
    except RequestRefused as error:
        raise ConfigError(error.detail.replace("`model`", "TURNSTREAM_MODEL", 1)) from None
    return name
