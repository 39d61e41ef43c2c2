"""Makes the shortest possible call to each provider of models."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from turnstream.config import Settings
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ProviderError
from turnstream.domain.kinds import TEXT
from turnstream.extension import Extension
from turnstream.libraries.providers.connect import connect_providers
from turnstream.libraries.providers.models import default_model, usable_providers
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.llm.provider import Message, ModelRequest

_PING = 30.0  # seconds until a call is given up


async def ping_providers(settings: Settings, extensions: Sequence[Extension]) -> Mapping[str, str]:
    """Makes the shortest possible call to each provider. Returns the error of each provider by its name; the text is
    empty if there was no error.
    """
    specs = [spec for spec in usable_providers(settings, extensions) if not spec.api.stand_in]
    default, answers = default_model(settings, extensions), dict[str, str]()
    async with connect_providers(specs) as offers:
        for number, (spec, offer) in enumerate(zip(specs, offers, strict=True)):
            listed = [model.id for model in spec.models]
            is_its_own = default in listed or (number == 0 and settings.model is not None)
            model = default if is_its_own else next(iter(listed), None)
            answers[spec.name] = "it has no model in the file of models" if model is None else await _ping(offer, model)
    return answers


async def _ping(offer: ProviderModels, model: str) -> str:
    # OpenAI's newer API accepts no smaller limit.
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
