"""Interceptors of model calls, below the adapters: they can read or change the bytes of a call, or answer it."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Protocol

import httpx2

from turnstream.llm.provider import ModelCall, ModelRequest, ProviderWrapper

Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]

# The model call that this task makes. The bytes of its request do not identify the call.
CALL: ContextVar[ModelCall | None] = ContextVar("call", default=None)


class Interceptor(Protocol):
    async def __call__(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        """Returns its own response to a request, or the response from `send`. Raises the errors of httpx2."""
        ...


class CallPublisher(ProviderWrapper):
    """A provider that publishes its model call to interceptors."""

    def adapt(self, request: ModelRequest) -> ModelRequest:
        CALL.set(request.call)
        return request
