"""Helps interceptors of model calls: identifies the current call, and filters the body of a response."""

from collections.abc import AsyncIterator, Callable

import httpx2

from turnstream.llm.interceptor import CALL
from turnstream.llm.provider import ModelCall

BodyFilter = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]


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
    """Returns the response with a body that passes through `filter`. `on_close` is called when the body is closed."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _FilteredStream(response.stream, filter, on_close)
    return response


def current_call() -> ModelCall | None:
    """Returns the model call of the current request, or None if no CallPublisher wraps the provider."""
    return CALL.get()
