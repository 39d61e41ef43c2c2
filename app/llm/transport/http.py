"""HTTP below every adapter: the client, the reading of a streamed answer to its end, failures and their classes."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from types import TracebackType
from typing import Protocol, Self

import httpx2
import msgspec

from app.domain.errors import PermanentError, ProviderError, TransientError
from app.llm.provider import ModelRequest, Part
from app.llm.transport.interceptor import InterceptingTransport, Interceptor
from app.llm.transport.wire import BadStream, Wire

MAX_MESSAGE = 1_000  # characters of an error text that are kept

_MAX_DRAIN = 1.0  # seconds
# Seconds of silence that are allowed after the reason to stop: some servers never send the event that ends a stream.
_MAX_TAIL = 5.0
_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})


def http_client(
    make: Callable[..., httpx2.AsyncClient],
    interceptors: Sequence[Interceptor] = (),
    *,
    max_connections: int = 10_000,
    connect_timeout: float = 5.0,
    read_timeout: float | None = None,
) -> httpx2.AsyncClient:
    """Returns the client for an SDK, which takes its timeouts, in seconds, from it.

    The reader of a stream has a stall timeout, so there is no second clock here, unless `read_timeout` asks for one.
    """
    limits = httpx2.Limits(
        max_connections=max_connections, max_keepalive_connections=max_connections, keepalive_expiry=30
    )
    timeout = httpx2.Timeout(read_timeout, connect=connect_timeout)
    network = make(limits=limits, timeout=timeout)
    if not interceptors:
        return network
    return httpx2.AsyncClient(transport=InterceptingTransport(network, interceptors), timeout=timeout)


class _Client(Protocol):
    async def close(self) -> None: ...


class Adapter(ABC):
    """Reader of the answers that an SDK's client requests. Make it once and close it once: the client costs 20 ms and
    holds the connections.
    """

    def __init__(self, client: _Client) -> None:
        self._owned = client

    async def aclose(self) -> None:
        await self._owned.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        """Yields the parts of the answer until its last event, or until its reason to stop and then silence."""
        async with self._open(request) as (response, wire), aclosing(_chunks(response)) as body:
            if "json" in response.headers.get("content-type", ""):
                if parts := wire.feed_whole(b"".join([chunk async for chunk in body])):
                    yield parts
            else:
                async for chunk in body:
                    if parts := wire.feed(chunk):
                        yield parts
                    if wire.finished or wire.over:
                        break
                while wire.finished and not wire.over and (chunk := await _next_chunk(body)):
                    if parts := wire.feed(chunk):
                        yield parts
                if wire.ended:
                    await _drain(body)
            if parts := wire.end():
                yield parts
            self._raise_failure(wire, response.status_code)

    def _raise_failure(self, wire: Wire, status: int) -> None:
        if isinstance(wire.failure, BadStream):
            raise TransientError("bad_stream", str(wire.failure), request_id=wire.request_id)
        if wire.failure is not None:
            raise self._stream_error(wire, status)

    @abstractmethod
    def _open(self, request: ModelRequest) -> AbstractAsyncContextManager[tuple[httpx2.Response, Wire]]:
        """Sends the request. Gives the response, its body unread, and the parser for it. Raises ProviderError, also
        for failures while the body is read.
        """

    @abstractmethod
    def _stream_error(self, wire: Wire, status: int) -> ProviderError:
        """Returns the error for a failure that came as an event of the stream."""


def _chunks(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """Returns the body as it arrives. We ask for it uncompressed, but a gateway may compress it all the same."""
    found = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    assert isinstance(found, AsyncGenerator)
    return found


async def _next_chunk(body: AsyncGenerator[bytes, None]) -> bytes:
    """Returns the next chunk; b"" at the end, after `_MAX_TAIL` of silence, or when the connection is lost."""
    with contextlib.suppress(StopAsyncIteration, TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(_MAX_TAIL):
            return await anext(body)
    return b""


async def _drain(body: AsyncGenerator[bytes, None]) -> None:
    """Reads the bytes after the last event: only a response that was read to its end frees its connection for reuse."""
    with contextlib.suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(_MAX_DRAIN):
            async for _ in body:
                pass


class _TokenCount(msgspec.Struct):
    input_tokens: int


def decode_token_count(body: bytes) -> int:
    """Returns the tokens that a provider counted. Raises TransientError if the body is not such a count."""
    try:
        return msgspec.json.decode(body, type=_TokenCount).input_tokens
    except msgspec.DecodeError as error:
        raise TransientError("bad_count", str(error)) from error


def classify_failure(
    names: Iterable[str | None],
    status: int,
    should_retry: str | None,
    permanent: Collection[str],
    transient: Collection[str],
) -> type[TransientError] | type[PermanentError]:
    """Decides whether a retry can help: by the header `x-should-retry`, else by the provider's name for the failure,
    else by the status, which is 200 for a failure in mid-stream.
    """
    if should_retry in {"true", "false"}:
        return TransientError if should_retry == "true" else PermanentError
    for name in names:
        if name in permanent or name in transient:
            return PermanentError if name in permanent else TransientError
    refused = 400 <= status < 500 and status not in _TRANSIENT_STATUSES
    return PermanentError if refused else TransientError


def connection_error(error: Exception) -> TransientError:
    """Converts an SDK's or the transport's failure to get an answer."""
    cause = error if isinstance(error, httpx2.HTTPError) else error.__cause__
    # The aiohttp transport raises ConnectTimeout for every failure to connect, also for a refused connection.
    timed_out = isinstance(cause, httpx2.TimeoutException) and not isinstance(cause, httpx2.ConnectTimeout)
    cause = error.__cause__
    message = f"{error} ({type(cause).__name__}: {cause})" if cause else f"{type(error).__name__}: {error}"
    return TransientError("timeout_error" if timed_out else "connection_error", message[:MAX_MESSAGE])


def retry_after(headers: httpx2.Headers) -> float | None:
    """Returns the wait in seconds that the server asks for: in milliseconds, in seconds, or until a date."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    if (seconds := _number(value)) is not None:
        return seconds
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None
