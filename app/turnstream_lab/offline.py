"""Opens the models of the settings for a replay without a network."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from turnstream.config import Settings, read_environment
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension, model_apis
from turnstream.libraries.providers.connect import connect_providers, import_adapter
from turnstream.libraries.providers.models import all_providers
from turnstream.libraries.providers.registry import read_registry
from turnstream.llm.interceptor import Interceptor
from turnstream.llm.models.api import CallOptions
from turnstream.llm.models.catalog import Models


class _Complete(dict[str, str]):
    """An environment that returns a dummy value for every missing key and address."""

    def get(self, name: str, _default: object = None) -> str:
        return super().get(name) or "http://offline.invalid"


@asynccontextmanager
async def offline_models(
    settings: Settings, extensions: Sequence[Extension], interceptors: Sequence[Interceptor]
) -> AsyncIterator[Models]:
    """Yields the models of the settings, as if all keys were set. `interceptors` answer instead of the network."""
    known = {spec.name for spec in all_providers(settings, extensions) if not spec.api.stand_in}
    apis = model_apis(settings, extensions)
    specs = []
    for spec in read_registry(settings.models_file, _Complete(read_environment()), apis):
        with suppress(ConfigError):
            spec.api.check(spec.name)
            await import_adapter(spec.api)  # an import during a replayed call would count as silence of the model
            specs.append(spec)
    async with connect_providers(specs, CallOptions(interceptors)) as offers:
        if settings.model is not None and offers:
            first = next((offer for offer in offers if offer.provider.name in known), offers[0])
            offers.append(replace(first, models=(), prefixes=[settings.model]))
        yield Models(offers)
