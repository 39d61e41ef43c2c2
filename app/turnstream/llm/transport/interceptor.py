"""Interceptors of model calls, below the adapters, if a call is still bytes: they see it, change it or answer it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Protocol

import httpx2

from turnstream.llm.provider import ModelCall, ModelRequest, ProviderWrapper

Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]
BodyFilter = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]

# The model call that this task is making. A request does not carry it: its bytes are the provider's.
_call: ContextVar[ModelCall | None] = ContextVar("call", default=None)


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


class _FilteredStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, filter: BodyFilter, on_close: Callable[[], None]) -> None:
        self._stream = stream
        self._filter = filter
        self._on_close = on_close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._filter(aiter(self._stream))

    async def aclose(self) -> None:
        self._on_close()
        await self._stream.aclose()


def filter_body(
    response: httpx2.Response, filter: BodyFilter, on_close: Callable[[], None] = lambda: None
) -> httpx2.Response:
    """Returns the response with its body passed through `filter`. `on_close` is called when it is closed."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _FilteredStream(response.stream, filter, on_close)
    return response


def current_call() -> ModelCall | None:
    """The model call that the request belongs to; None if its provider is no CallPublisher."""
    return _call.get()


class CallPublisher(ProviderWrapper):
    """A provider that makes its model call known to interceptors."""

    def adapt(self, request: ModelRequest) -> ModelRequest:
        _call.set(request.call)
        return request
