"""Interceptors of model calls, below the adapters: an interceptor can read, change or answer the bytes of a call."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Protocol

import httpx2

from turnstream.llm.provider import ModelCall, ModelRequest, ProviderWrapper

Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]

# The model call of this task. The bytes of the request do not identify the call.
CALL: ContextVar[ModelCall | None] = ContextVar("call", default=None)


class Interceptor(Protocol):
    async def __call__(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        """Returns the response to a request: its own, or from `send`. Raises the errors of httpx2."""
        ...


class CallPublisher(ProviderWrapper):
    """A provider that publishes its model call to interceptors."""

    def adapt(self, request: ModelRequest) -> ModelRequest:
        CALL.set(request.call)
        return request
