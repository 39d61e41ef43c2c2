"""Interceptors of model calls, below the adapters, if a call is still bytes: they see it, change it or answer it."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
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


class CallPublisher(ProviderWrapper):
    """A provider that makes its model call known to interceptors."""

    def adapt(self, request: ModelRequest) -> ModelRequest:
        CALL.set(request.call)
        return request
