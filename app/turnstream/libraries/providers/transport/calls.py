"""Sends the calls of an adapter through the SDK of its provider."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from types import TracebackType
from typing import Protocol, Self

import aiohttp
import httpx2

from turnstream.libraries.providers.transport.failures import Unanswered
from turnstream.libraries.providers.transport.response import ModelResponse, cut_failure, open_response
from turnstream.tracing import TRACING


class SdkStream(Protocol):
    """A streamed response, as the SDKs return it."""

    response: httpx2.Response

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


# Sends a POST through the SDK. The arguments are its path, headers and body.
SdkPost = Callable[[str, Mapping[str, str], bytes], Awaitable[SdkStream]]


class Calls:
    """Sends the calls of an adapter. `client` is the SDK's HTTP client. A subclass may send calls in another way."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.client.event_hooks = {"response": [cut_failure]}

    def post(
        self, sdk: SdkPost, path: str, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[ModelResponse]:
        """Sends the body and returns the response, which has a status of success. Raises the SDK's exceptions, and
        Unanswered. The body may have megabytes, so it is freed before the answer ends.
        """
        return self.post_by_sdk(sdk, path, headers, body)

    async def socket(
        self,
        sdk: SdkPost,  # noqa: ARG002
        path: str,  # noqa: ARG002
        headers: Mapping[str, str],  # noqa: ARG002
        max_bytes: int,  # noqa: ARG002
    ) -> "aiohttp.ClientWebSocketResponse[bool] | None":
        """Opens a WebSocket at the path, with the headers of a call. Returns None if WebSockets are not available."""
        return None

    def kept_open(self) -> AbstractAsyncContextManager[None]:
        """Keeps a connection open for the next call until the block ends."""
        return nullcontext()

    @asynccontextmanager
    async def post_by_sdk(
        self, sdk: SdkPost, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[ModelResponse]:
        try:
            stream = await sdk(path, {**headers, **TRACING.outgoing()}, body)
        except (aiohttp.ClientError, OSError) as error:  # OpenAI's SDK does not catch all these errors
            raise Unanswered from error
        del body
        async with stream, open_response(stream.response) as opened:
            yield opened


# Creates the object that sends an adapter's calls with the network client.
MakeCalls = Callable[[httpx2.AsyncClient], Calls]
