"""The seam below every adapter, where a call is still bytes: whoever taps it can see them, change them, or answer in
the network's place. An adapter that nobody taps is as it was.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from app.llm.provider import Call, ModelRequest, Part, Provider, tokens_of

Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]

# Of the model call that this task is making.
_call: ContextVar[Call | None] = ContextVar("call", default=None)


class Tap(Protocol):
    async def __call__(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        """Answers a streamed request, perhaps by `send`. Raises what httpx2 would."""
        ...


def tapped(client: httpx2.AsyncClient, taps: Sequence[Tap]) -> httpx2.AsyncClient:
    """The client, with its streamed requests going through `taps`: the first is the nearest to the network."""
    for tap in taps:
        client.send = _through(tap, client.send)  # type: ignore[assignment,method-assign]
    return client


def _through(tap: Tap, send: Callable[..., Awaitable[httpx2.Response]]) -> Callable[..., Awaitable[httpx2.Response]]:
    async def tapped_send(request: httpx2.Request, **how: Any) -> httpx2.Response:
        if not how.get("stream"):
            return await send(request, **how)
        return await tap(request, lambda request: send(request, **how))

    return tapped_send


def present_call() -> Call | None:
    """Whose request a tap has before it; None where nobody said."""
    return _call.get()


@dataclass(frozen=True, slots=True)
class Announced:
    """A provider that tells its taps which call they have before them."""

    provider: Provider

    @property
    def name(self) -> str:
        return self.provider.name

    def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        _call.set(request.call)
        return self.provider.stream(request)

    async def count(self, request: ModelRequest) -> int | None:
        _call.set(request.call)
        return await tokens_of(self.provider, request)
