"""What every adapter does below its SDK: connections, a streamed answer to its end, and what its headers say."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from types import TracebackType
from typing import Protocol, Self

import httpx2
import msgspec

from app.domain.errors import ProviderError, TransientError
from app.llm.provider import ModelRequest, Part
from app.llm.transport.failures import LONGEST_MESSAGE
from app.llm.transport.interceptor import InterceptingTransport, Interceptor
from app.llm.transport.wire import BadStream, Wire

_LONGEST_DRAIN = 1.0  # seconds
# Seconds that a server may be silent after it has said why the model stopped: some never say that they are done.
_LONGEST_TAIL = 5.0


def http_client(
    make: Callable[..., httpx2.AsyncClient],
    interceptors: Sequence[Interceptor] = (),
    *,
    max_connections: int = 10_000,
    connect_timeout: float = 5.0,
    read_timeout: float | None = None,
) -> httpx2.AsyncClient:
    """Returns the client for an SDK, which takes its timeouts, in seconds, from it. Without interceptors it is the
    SDK's own kind.

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
    """Reads what an SDK's client has asked for. Make it once and close it once: the client costs 20 ms and holds the
    connections.
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
        """To the end as this server marks it: its last word, or its reason to stop and then nothing more."""
        async with self._asked(request) as (response, wire), aclosing(_chunks(response)) as body:
            if "json" in response.headers.get("content-type", ""):
                if parts := wire.whole(b"".join([chunk async for chunk in body])):
                    yield parts
            else:
                async for chunk in body:
                    if parts := wire.feed(chunk):
                        yield parts
                    if wire.finished or wire.over:
                        break
                while wire.finished and not wire.over and (chunk := await _next(body)):
                    if parts := wire.feed(chunk):
                        yield parts
                if wire.ended:
                    await _drain(body)
            if parts := wire.end():
                yield parts
            self._check(wire, response.status_code)

    def _check(self, wire: Wire, status: int) -> None:
        """Raises what went wrong in the midst of the answer."""
        if isinstance(wire.failure, BadStream):
            raise TransientError("bad_stream", str(wire.failure), request_id=wire.request_id)
        if wire.failure is not None:
            raise self._failure(wire, status)

    @abstractmethod
    def _asked(self, request: ModelRequest) -> AbstractAsyncContextManager[tuple[httpx2.Response, Wire]]:
        """The answer, whose body is not read yet, and what reads it. Raises our errors, those of the body too."""

    @abstractmethod
    def _failure(self, wire: Wire, status: int) -> ProviderError:
        """What the provider said of it."""


def _chunks(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The body as it arrives. We ask for it uncompressed, but a gateway may know better."""
    found = response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()
    assert isinstance(found, AsyncGenerator)
    return found


async def _next(body: AsyncGenerator[bytes, None]) -> bytes:
    """What comes next, or nothing where nothing comes for long, or the connection is lost."""
    with contextlib.suppress(StopAsyncIteration, TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(_LONGEST_TAIL):
            return await anext(body)
    return b""


async def _drain(body: AsyncGenerator[bytes, None]) -> None:
    """Read what is behind the last event, so that the connection can be used again; but never wait for long."""
    with contextlib.suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(_LONGEST_DRAIN):
            async for _ in body:
                pass


class _Count(msgspec.Struct):
    input_tokens: int


_count = msgspec.json.Decoder(_Count)


def counted(body: bytes) -> int:
    """The tokens that a provider has counted. Raises TransientError for what is no count."""
    try:
        return _count.decode(body).input_tokens
    except msgspec.DecodeError as error:
        raise TransientError("bad_count", str(error)) from error


def lost(error: Exception) -> TransientError:
    """An SDK's or the transport's failure to get an answer. The transport calls every failure to connect a timeout."""
    cause = error if isinstance(error, httpx2.HTTPError) else error.__cause__
    timed_out = isinstance(cause, httpx2.TimeoutException) and not isinstance(cause, httpx2.ConnectTimeout)
    return TransientError("timeout_error" if timed_out else "connection_error", _words(error))


def _words(error: Exception) -> str:
    cause = error.__cause__
    words = f"{error} ({type(cause).__name__}: {cause})" if cause else f"{type(error).__name__}: {error}"
    return words[:LONGEST_MESSAGE]


def retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds, from any of the three ways to say it."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    words = headers.get("retry-after", "")
    seconds = _number(words)
    return _until(words) if seconds is None else seconds


def _number(words: str) -> float | None:
    try:
        number = float(words)
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None


def _until(words: str) -> float | None:
    try:
        date = parsedate_to_datetime(words)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
