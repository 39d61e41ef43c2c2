"""Creates the clients of the registry's providers. The import of an SDK takes one or two seconds of CPU, so an SDK is
imported at its first use, in a thread, while the server listens and streams.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any

from turnstream.llm.interceptor import CallPublisher
from turnstream.llm.models.api import CallOptions, MakePool, ModelApi, ProviderSpec
from turnstream.llm.models.catalog import ProviderModels
from turnstream.llm.provider import (
    ModelRequest,
    Observe,
    ObservedProvider,
    OwnedProvider,
    Part,
    Provider,
    count_tokens,
    discard_answer,
    kept_open,
)

_OPTIONS = CallOptions()


@asynccontextmanager
async def connect_providers(
    specs: Sequence[ProviderSpec], options: CallOptions = _OPTIONS, pool: MakePool | None = None
) -> AsyncIterator[list[ProviderModels]]:
    """Yields the providers with their models. Each key of a provider has its own client, which is opened at its first
    call. All clients are closed at the end of the block. `pool` joins the clients of one provider into a single
    provider; without `pool`, only the first key is used.
    """
    async with AsyncExitStack() as stack:
        providers: list[Provider] = []
        for spec in specs:
            by_key = [OnDemand(replace(spec, key=key), options) for key in (spec.keys or (spec.key,))]
            for each in by_key:
                await stack.enter_async_context(aclosing(each))
            providers.append(by_key[0] if pool is None or spec.api.stand_in else pool(spec, by_key))
        yield [
            ProviderModels(
                CallPublisher(provider) if options.interceptors else provider,
                spec.models,
                spec.prefixes,
                spec.parameters,
                spec.api.without_tags,
            )
            for provider, spec in zip(providers, specs, strict=True)
        ]


class OnDemand:
    """A provider whose adapter is created at the first call."""

    def __init__(self, spec: ProviderSpec, options: CallOptions = _OPTIONS) -> None:
        self.name = spec.name
        self._spec = spec
        self._options = options
        self._adapter: OwnedProvider | None = None
        self._making = asyncio.Lock()
        self._observe: Observe | None = None

    def observe(self, observe: Observe) -> None:
        """Passes the headers of each answer to `observe`. Must be called before the first model call."""
        self._observe = observe

    async def adapter(self) -> OwnedProvider:
        async with self._making:
            self._adapter = self._adapter or await self._new_adapter()
        return self._adapter

    async def _new_adapter(self) -> OwnedProvider:
        await import_adapter(self._spec.api)
        # Creating the adapter takes 20 ms, because it reads the certificates of all authorities.
        adapter = await asyncio.to_thread(self._spec.api.connect, self._spec, self._options)
        if isinstance(adapter, ObservedProvider):
            adapter.observe = self._observe
        return adapter

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

    async def discard(self, retained: Mapping[str, Any]) -> None:
        await discard_answer(await self.adapter(), retained)

    async def aclose(self) -> None:
        if self._adapter is not None:
            await self._adapter.aclose()


async def import_adapter(api: ModelApi) -> None:
    """Imports the adapter's libraries, such as an SDK."""
    if api.module is not None:
        await asyncio.to_thread(import_module, api.module)
