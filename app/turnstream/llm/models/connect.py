"""Clients for the providers of the registry. An SDK takes a second or two of CPU to import, so each is imported when it
is first needed, in a thread: the server listens and streams meanwhile.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import assert_never

from turnstream.llm.models.catalog import ProviderModels
from turnstream.llm.models.parameters import Api
from turnstream.llm.models.registry import ProviderSpec
from turnstream.llm.provider import ModelRequest, Part, count_tokens, kept_open
from turnstream.llm.transport.http import MAX_EVENT_BYTES, Adapter
from turnstream.llm.transport.interceptor import CallPublisher, Interceptor


@asynccontextmanager
async def connect_providers(
    specs: Sequence[ProviderSpec],
    interceptors: Sequence[Interceptor] = (),
    *,
    max_event_bytes: int = MAX_EVENT_BYTES,
    direct: bool = True,
) -> AsyncIterator[list[ProviderModels]]:
    """A client for each provider, opened at its first call. All are closed at the end. Their requests pass through
    `interceptors`. An event of more than `max_event_bytes` ends an answer. `direct` model calls are not built by the
    SDK, unless there are interceptors.
    """
    async with AsyncExitStack() as stack:
        providers = [OnDemand(spec, partial(_made, spec, interceptors, max_event_bytes, direct)) for spec in specs]
        for provider in providers:
            await stack.enter_async_context(aclosing(provider))
        yield [
            ProviderModels(
                CallPublisher(provider) if interceptors else provider, spec.models, spec.prefixes, spec.parameters
            )
            for provider, spec in zip(providers, specs, strict=True)
        ]


class OnDemand:
    """A provider whose adapter is made by `make` once its module is imported."""

    def __init__(self, spec: ProviderSpec, make: Callable[[], Adapter]) -> None:
        self.name = spec.name
        self._api = spec.api
        self._make = make
        self._adapter: Adapter | None = None
        self._making = asyncio.Lock()

    async def adapter(self) -> Adapter:
        async with self._making:
            self._adapter = self._adapter or await self._new_adapter()
        return self._adapter

    async def _new_adapter(self) -> Adapter:
        await import_adapter(self._api)
        # It reads the certificates of all authorities, which takes 20 ms.
        return await asyncio.to_thread(self._make)

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        return self._first_stream(request) if self._adapter is None else self._adapter.stream(request)

    async def _first_stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        adapter = await self.adapter()
        async with aclosing(adapter.stream(request)) as stream:
            async for parts in stream:
                yield parts

    async def count(self, request: ModelRequest) -> int | None:
        return await count_tokens(await self.adapter(), request)

    def kept_open(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._adapter is None else kept_open(self._adapter)

    async def aclose(self) -> None:
        if self._adapter is not None:
            await self._adapter.aclose()


async def import_adapter(api: Api) -> None:
    """Imports the adapter to an API, and with it the SDK."""
    module = "turnstream.llm.anthropic.provider" if api == "anthropic" else "turnstream.extensions.openai.provider"
    await asyncio.to_thread(import_module, module)


def _made(spec: ProviderSpec, interceptors: Sequence[Interceptor], max_event_bytes: int, direct: bool) -> Adapter:
    match spec.api:
        case "anthropic":
            from turnstream.llm.anthropic.provider import AnthropicProvider  # noqa: PLC0415

            return AnthropicProvider(
                spec.key or "",
                spec.base_url,
                max_event_bytes=max_event_bytes,
                interceptors=interceptors,
                direct=direct,
                client_certificate=spec.client_certificate,
            )
        case "openai-chat" | "openai-responses":
            from turnstream.extensions.openai.provider import OpenAIChatProvider, OpenAIResponsesProvider  # noqa: PLC0415

            return (OpenAIChatProvider if spec.api == "openai-chat" else OpenAIResponsesProvider)(
                spec.key or "",
                spec.base_url,
                name=spec.name,
                quirks=spec.quirks,
                headers=spec.headers,
                max_event_bytes=max_event_bytes,
                interceptors=interceptors,
                direct=direct,
                client_certificate=spec.client_certificate,
            )
        case _:
            assert_never(spec.api)
