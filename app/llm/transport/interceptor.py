"""The seam below every adapter, where a call is still bytes: whoever taps it can see them, change them, or answer in
the network's place. An adapter that nobody taps is as it was.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import httpx2

from app.llm.provider import ModelCall, ModelRequest, Wrapped

Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]
Change = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]

# Of the model call that this task is making.
_call: ContextVar[ModelCall | None] = ContextVar("call", default=None)


class Interceptor(Protocol):
    async def __call__(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        """Answers a streamed request, perhaps by `send`. Raises what httpx2 would."""
        ...


def tapped(client: httpx2.AsyncClient, taps: Sequence[Interceptor]) -> httpx2.AsyncClient:
    """The client, with its streamed requests going through `taps`: the first is the nearest to the network."""
    for tap in taps:
        client.send = _through(tap, client.send)  # type: ignore[assignment,method-assign]
    return client


def _through(
    tap: Interceptor, send: Callable[..., Awaitable[httpx2.Response]]
) -> Callable[..., Awaitable[httpx2.Response]]:
    async def tapped_send(request: httpx2.Request, **how: Any) -> httpx2.Response:
        if not how.get("stream"):
            return await send(request, **how)
        return await tap(request, lambda request: send(request, **how))

    return tapped_send


class _Changed(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, change: Change, closing: Callable[[], None]) -> None:
        self._stream = stream
        self._change = change
        self._closing = closing

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._change(aiter(self._stream))

    async def aclose(self) -> None:
        self._closing()
        await self._stream.aclose()


def changed(response: httpx2.Response, change: Change, closing: Callable[[], None] = lambda: None) -> httpx2.Response:
    """The answer, with its body as `change` gives it on. `closing` is called when nobody reads it any more."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Changed(response.stream, change, closing)
    return response


def current_call() -> ModelCall | None:
    """Whose request a tap has before it; None where nobody said."""
    return _call.get()


class Announced(Wrapped):
    """A provider that tells its taps which call they have before them."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        _call.set(request.call)
        return request
