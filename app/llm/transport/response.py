"""The response to a model call: its head, and its body as it arrives."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import httpx2


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """`read` returns the next bytes of the body as they arrive, and b"" at its end."""

    status: int
    headers: Mapping[str, str]
    read: Callable[[], Awaitable[bytes]]

    async def whole(self) -> bytes:
        body = bytearray()
        while chunk := await self.read():
            body += chunk
        return bytes(body)


@asynccontextmanager
async def open_response(response: httpx2.Response) -> AsyncIterator[ModelResponse]:
    """Gives a response of httpx2. We ask for bodies uncompressed, but a gateway may compress them all the same."""
    chunks = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    assert isinstance(chunks, AsyncGenerator)
    async with aclosing(chunks):
        yield ModelResponse(response.status_code, response.headers, lambda: anext(chunks, b""))
