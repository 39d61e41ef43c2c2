"""From what the registry says to providers that can be asked."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import assert_never

from app.llm.anthropic import AnthropicProvider
from app.llm.models import Offer
from app.llm.openai import OpenAIChatProvider
from app.llm.openai_quirks import QUIRKS
from app.llm.provider import Provider
from app.llm.registry import ProviderSpec


@asynccontextmanager
async def connect_providers(specs: Sequence[ProviderSpec]) -> AsyncIterator[list[Offer]]:
    """One client for each, closed at the end."""
    async with AsyncExitStack() as stack:
        yield [Offer(await _provider(spec, stack), spec.models, spec.prefixes) for spec in specs]


async def _provider(spec: ProviderSpec, stack: AsyncExitStack) -> Provider:
    match spec.api:
        case "anthropic":
            return await stack.enter_async_context(aclosing(AnthropicProvider(spec.key or "", spec.base_url)))
        case "openai-chat":
            provider = OpenAIChatProvider(
                spec.key or "", spec.base_url, name=spec.name, quirks=QUIRKS[spec.quirks], headers=spec.headers
            )
            return await stack.enter_async_context(aclosing(provider))
        case _:
            assert_never(spec.api)
