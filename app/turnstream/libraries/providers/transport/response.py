"""The response to a model call: its head, and its body as it arrives."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import httpx2

# Most bytes of a failure's body that are read, after decompression. The reason is at the start of the body.
MAX_FAILURE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """The response to a model call. `read` returns the next bytes of the body as they arrive, and b"" at its end."""

    status: int
    headers: Mapping[str, str]
    read: Callable[[], Awaitable[bytes]]

    async def whole(self, max_bytes: int) -> bytes:
        """Returns the body, or its first `max_bytes` bytes if it is longer."""
        body = bytearray()
        while len(body) < max_bytes and (chunk := await self.read()):
            body += chunk
        return bytes(body[:max_bytes])


@asynccontextmanager
async def open_response(response: httpx2.Response) -> AsyncIterator[ModelResponse]:
    """Yields a response of httpx2. Requests ask for uncompressed bodies, but a gateway may compress them."""
    chunks = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    assert isinstance(chunks, AsyncGenerator)
    async with aclosing(chunks):
        yield ModelResponse(response.status_code, response.headers, lambda: anext(chunks, b""))


async def cut_failure(response: httpx2.Response) -> None:
    """Limits the body of a failure. It is a hook for an SDK's client, because the SDK would read the whole body."""
    if not response.is_success:
        unread = httpx2.Response(response.status_code, headers=response.headers, stream=response.stream)
        response.headers.pop("content-encoding", None)
        response.stream = _Beginning(unread)


class _Beginning(httpx2.AsyncByteStream):
    """Streams the first bytes of a body, decompressed."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_FAILURE_BYTES
        async for chunk in self._response.aiter_bytes():
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                break

    async def aclose(self) -> None:
        await self._response.aclose()
