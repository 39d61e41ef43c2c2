"""Interceptors of model calls, below the adapters, if a call is still bytes: they see it, change it or answer it."""

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Protocol

import httpx2

from turnstream.llm.provider import ModelCall, ModelRequest, ProviderWrapper

Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]

# The model call that this task is making. A request does not carry it: its bytes are the provider's.
CALL: ContextVar[ModelCall | None] = ContextVar("call", default=None)


class Interceptor(Protocol):
    async def __call__(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        """Returns the response to a request, of its own or by `send`. Raises the errors of httpx2."""
        ...


class InterceptingTransport(httpx2.AsyncBaseTransport):
    """The transport of a client whose requests pass through interceptors. The first is the nearest to the network.

    The network is another client, which it owns: proxies, redirects and connections stay the business of that one.
    """

    def __init__(self, network: httpx2.AsyncClient, interceptors: Sequence[Interceptor]) -> None:
        self._network = network
        self._send: Send = partial(network.send, stream=True)
        for interceptor in interceptors:
            self._send = partial(interceptor, send=self._send)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._send(request)

    async def aclose(self) -> None:
        await self._network.aclose()


class CallPublisher(ProviderWrapper):
    """A provider that makes its model call known to interceptors."""

    def adapt(self, request: ModelRequest) -> ModelRequest:
        CALL.set(request.call)
        return request
