"""Clients for the providers of the registry. An SDK takes a second or two to import, so each is imported on demand."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import assert_never

from app.llm.models.catalog import ProviderModels
from app.llm.models.registry import ProviderSpec
from app.llm.provider import Provider
from app.llm.transport.http import MAX_EVENT_BYTES
from app.llm.transport.interceptor import CallPublisher, Interceptor


@asynccontextmanager
async def connect_providers(
    specs: Sequence[ProviderSpec],
    interceptors: Sequence[Interceptor] = (),
    *,
    max_event_bytes: int = MAX_EVENT_BYTES,
) -> AsyncIterator[list[ProviderModels]]:
    """Opens a client for each provider, and closes them at the end. Their requests pass through `interceptors`.
    An event of more than `max_event_bytes` ends an answer.
    """
    async with AsyncExitStack() as stack:
        providers = [await _provider(spec, stack, interceptors, max_event_bytes) for spec in specs]
        yield [
            ProviderModels(
                CallPublisher(provider) if interceptors else provider, spec.models, spec.prefixes, spec.parameters
            )
            for provider, spec in zip(providers, specs, strict=True)
        ]


async def _provider(
    spec: ProviderSpec, stack: AsyncExitStack, interceptors: Sequence[Interceptor], max_event_bytes: int
) -> Provider:
    match spec.api:
        case "anthropic":
            from app.llm.anthropic.provider import AnthropicProvider  # noqa: PLC0415

            return await stack.enter_async_context(
                aclosing(
                    AnthropicProvider(
                        spec.key or "", spec.base_url, max_event_bytes=max_event_bytes, interceptors=interceptors
                    )
                )
            )
        case "openai-chat" | "openai-responses":
            from app.llm.openai.provider import OpenAIChatProvider, OpenAIResponsesProvider  # noqa: PLC0415

            provider = (OpenAIChatProvider if spec.api == "openai-chat" else OpenAIResponsesProvider)(
                spec.key or "",
                spec.base_url,
                name=spec.name,
                quirks=spec.quirks,
                headers=spec.headers,
                max_event_bytes=max_event_bytes,
                interceptors=interceptors,
            )
            return await stack.enter_async_context(aclosing(provider))
        case _:
            assert_never(spec.api)
