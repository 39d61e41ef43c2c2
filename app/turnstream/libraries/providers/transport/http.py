"""HTTP below every adapter: the client, the reading of a streamed answer to its end."""

import asyncio
import contextlib
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import httpx2
import msgspec
import structlog

from turnstream.domain.errors import PermanentError, TransientError
from turnstream.libraries.providers.raw_members import weight_of
from turnstream.libraries.providers.transport.failures import LOST, content_type_error, provider_error
from turnstream.libraries.providers.transport.response import MAX_FAILURE_BYTES, ModelResponse
from turnstream.libraries.providers.transport.wire import BadStream, Wire
from turnstream.llm.interceptor import Interceptor, Send
from turnstream.llm.provider import ModelRequest, Observe, Part

log = structlog.get_logger(__name__)

_MAX_DRAIN = 1.0  # seconds
# Seconds of silence that are allowed after the reason to stop: some servers never send the event that ends a stream.
_MAX_TAIL = 5.0
MAX_COUNT_BYTES = 10_000
# How an event begins, and as many bytes as show it.
_EVENT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry)?:")
_ENOUGH = 16
# Bytes that are parsed and recorded at once. They hold five hundred deltas, which take some milliseconds; a read of a
# busy server returns six times as many.
_PIECE = 65_536


def http_client(
    make: Callable[..., httpx2.AsyncClient],
    interceptors: Sequence[Interceptor] = (),
    *,
    max_connections: int = 10_000,
    connect_timeout: float = 5.0,
    read_timeout: float | None = None,
    client_certificate: str | None = None,
) -> httpx2.AsyncClient:
    """Returns the client for an SDK, which takes its timeouts, in seconds, from it. `client_certificate` is a PEM file
    with a certificate and its key.

    The reader of a stream has a stall timeout, so there is no second clock here, unless `read_timeout` asks for one.
    """
    limits = httpx2.Limits(
        max_connections=max_connections, max_keepalive_connections=max_connections, keepalive_expiry=30
    )
    timeout = httpx2.Timeout(read_timeout, connect=connect_timeout)
    verify: ssl.SSLContext | bool = True
    if client_certificate is not None:
        verify = httpx2.create_ssl_context()
        verify.load_cert_chain(client_certificate)
    network = make(limits=limits, timeout=timeout, verify=verify)
    if not interceptors:
        return network
    return httpx2.AsyncClient(transport=InterceptingTransport(network, interceptors), timeout=timeout)


class InterceptingTransport(httpx2.AsyncBaseTransport):
    """The transport of a client whose requests pass through interceptors. The first is the nearest to the network.

    The network is another client, which it owns: proxies, redirects and connections stay the business of that one.
    """

    def __init__(self, network: httpx2.AsyncClient, interceptors: Sequence[Interceptor]) -> None:
        self._network = network
        self._send: Send = partial(network.send, stream=True)
        for interceptor in interceptors:
            self._send = partial(interceptor, send=self._send)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._send(request)

    async def aclose(self) -> None:
        await self._network.aclose()


class _Client(Protocol):
    async def close(self) -> None: ...


class Adapter(ABC):
    """Reader of the answers that an SDK's client requests. Make it once, in a thread, and close it once: the
    client costs 20 ms and holds the connections. An event that weighs more than `max_event_bytes` ends an answer.
    `observe` gets the headers of each answer.
    """

    name: str
    observe: Observe | None = None

    def __init__(self, client: _Client, max_event_bytes: int) -> None:
        self._owned = client
        self._max_event_bytes = max_event_bytes

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
        async with self._open(request) as (response, wire):
            if self.observe is not None:
                self.observe(request.model, response.headers)
            pieces = _Pieces(response.read)
            read = pieces.read
            if await _is_whole(pieces, response, wire):
                whole, weight = bytearray(), 0
                while chunk := await read():
                    whole += chunk
                    weight += weight_of(chunk)
                    self._check_event(weight, wire)
                if parts := wire.feed_whole(bytes(whole)):
                    yield parts
            else:
                while chunk := await read():
                    is_long = wire.unfinished > _PIECE
                    if parts := wire.feed(chunk):
                        if is_long:  # to decode it took its time, and so will what follows
                            await asyncio.sleep(0)
                        yield parts
                    if wire.finished or wire.over:
                        break
                    self._check_event(wire.unfinished, wire)
                while wire.finished and not wire.over and (chunk := await _next_chunk(read)):
                    if parts := wire.feed(chunk):
                        yield parts
                    self._check_event(wire.unfinished, wire)
                if wire.ended:
                    await _drain(response)
            if parts := wire.end():
                yield parts
        if isinstance(wire.failure, BadStream):
            log.warning("provider.unreadable", reason=str(wire.failure))
            message = "The provider sent data that is not JSON in the middle of its answer."
            raise TransientError("bad_stream", message, request_id=wire.request_id)
        if wire.failure is not None:
            raise provider_error(wire.failure, response.status, request_id=wire.request_id)

    def _check_event(self, size: int, wire: Wire) -> None:
        """Raises PermanentError: decoding an event without bound would hold up every other stream."""
        if size > self._max_event_bytes:
            message = f"The provider sent an event of more than {self._max_event_bytes:,} bytes, twice"
            message += " `TURNSTREAM_MAX_REPLY_CHARS`. A quote counts as ten bytes, a bracket as a hundred."
            raise PermanentError("event_too_long", message, request_id=wire.request_id)

    @abstractmethod
    def _open(self, request: ModelRequest) -> AbstractAsyncContextManager[tuple[ModelResponse, Wire]]:
        """Sends the request. Gives the response, its body unread, and the parser for it. Raises ProviderError, also
        for failures while the body is read.
        """


async def _is_whole(pieces: "_Pieces", response: ModelResponse, wire: Wire) -> bool:
    """Whether the answer is one JSON value, and no stream of events. The beginning of the body decides if the type
    is another one: some servers send events as text. Raises TransientError for a body that is neither.
    """
    kind = response.headers.get("content-type", "").lower()
    if "json" in kind or "event-stream" in kind:
        return "json" in kind
    beginning = await pieces.peek(_ENOUGH)
    if not beginning or _EVENT.match(beginning):
        return False
    if beginning.lstrip().startswith((b"{", b"[")):
        return True
    page = await response.whole(MAX_FAILURE_BYTES)
    raise content_type_error(kind, beginning + page, wire.request_id)


class _Pieces:
    """Reader of a body in pieces, between which others get their turn on the event loop."""

    def __init__(self, read: Callable[[], Awaitable[bytes]]) -> None:
        self._read = read
        self._rest = b""

    async def peek(self, size: int) -> bytes:
        """Returns the first bytes, at least `size` if there are as many, and leaves them to be read."""
        while len(self._rest) < size and (chunk := await self._read()):
            self._rest += chunk
        return self._rest

    async def read(self) -> bytes:
        if self._rest:
            await asyncio.sleep(0)
            chunk = self._rest
        else:
            chunk = await self._read()
        if len(chunk) <= _PIECE:
            self._rest = b""
            return chunk
        self._rest = chunk[_PIECE:]
        return chunk[:_PIECE]


async def _next_chunk(read: Callable[[], Awaitable[bytes]]) -> bytes:
    """Returns the next chunk; b"" at the end, after `_MAX_TAIL` of silence, or when the connection is lost."""
    with contextlib.suppress(TimeoutError, *LOST):
        async with asyncio.timeout(_MAX_TAIL):
            return await read()
    return b""


async def _drain(response: ModelResponse) -> None:
    """Reads the bytes after the last event: only a response that was read to its end frees its connection for reuse."""
    with contextlib.suppress(TimeoutError, *LOST):
        async with asyncio.timeout(_MAX_DRAIN):
            while await response.read():
                pass


class _TokenCount(msgspec.Struct):
    input_tokens: int


async def read_token_count(response: ModelResponse) -> int:
    """Returns the tokens that a provider counted. Raises TransientError if the body is not such a count."""
    try:
        return msgspec.json.decode(await response.whole(MAX_COUNT_BYTES), type=_TokenCount).input_tokens
    except msgspec.DecodeError as error:
        raise TransientError("bad_count", "The provider's count of tokens could not be read.") from error
