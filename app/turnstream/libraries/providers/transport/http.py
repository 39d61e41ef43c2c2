"""HTTP for all adapters: creates the client, and reads a streamed answer to its end."""

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
from turnstream.libraries.json_weight import weight_of
from turnstream.libraries.providers.transport.failures import LOST, content_type_error, provider_error
from turnstream.libraries.providers.transport.response import MAX_FAILURE_BYTES, ModelResponse
from turnstream.libraries.providers.transport.wire import BadStream, Wire
from turnstream.llm.interceptor import Interceptor, Send
from turnstream.llm.provider import ModelRequest, Observe, Part

log = structlog.get_logger(__name__)

# Most seconds for reading the bytes after the last event.
_MAX_DRAIN = 1.0
# Most seconds of silence after the stop reason, because some servers never send the last event of a stream.
_MAX_TAIL = 5.0
MAX_COUNT_BYTES = 10_000
# The beginning of an event, and the number of bytes that suffice for the match.
_EVENT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry)?:")
_ENOUGH = 16
# Bytes that are parsed and recorded at once: about five hundred deltas, or some milliseconds. On a busy server, one
# read returns six times as many bytes.
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
    """Returns the client for an SDK. The SDK uses the client's timeouts, in seconds. `client_certificate` is a PEM file
    with a certificate and its key.

    The reader of a stream has a stall timeout, so reads have no timeout here unless `read_timeout` is given.
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
    """Sends the requests of a client through interceptors. The first interceptor is the nearest to the network.

    The transport owns a second client, which sends the requests over the network. The second client handles proxies,
    redirects and connections.
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
    """Reads the answers to the requests of an SDK's client. Create the adapter once, in a thread, and close it once:
    the creation of the client takes 20 ms, and the client owns the connections. An answer fails if the weight of one
    event exceeds `max_event_bytes`. `observe` receives the model and the headers of each answer.
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
        """Yields the parts of the answer until its last event, or until silence after its stop reason."""
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
                        if is_long:  # decoding the event took long, and so will the next steps
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
        """Raises PermanentError for an event that is too large, because its decoding would block all other streams."""
        if size > self._max_event_bytes:
            message = f"The provider sent an event of more than {self._max_event_bytes:,} bytes, twice"
            message += " `TURNSTREAM_MAX_REPLY_CHARS`. A quote counts as ten bytes, a bracket as a hundred."
            raise PermanentError("event_too_long", message, request_id=wire.request_id)

    @abstractmethod
    def _open(self, request: ModelRequest) -> AbstractAsyncContextManager[tuple[ModelResponse, Wire]]:
        """Sends the request. Yields the response, whose body has not been read, and the parser for the body. Raises
        ProviderError, even if the failure occurs while the body is read.
        """


async def _is_whole(pieces: "_Pieces", response: ModelResponse, wire: Wire) -> bool:
    """Returns whether the answer is one JSON value instead of a stream of events. If the content type is unknown, the
    beginning of the body decides, because some servers send events as plain text. Raises TransientError for a body of
    another format.
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
    """Reads a body in pieces. The event loop runs other tasks between two pieces."""

    def __init__(self, read: Callable[[], Awaitable[bytes]]) -> None:
        self._read = read
        self._rest = b""

    async def peek(self, size: int) -> bytes:
        """Returns the first bytes without consuming them: at least `size` bytes, or the whole body if it is shorter."""
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
    """Returns the next chunk, or b"" at the end, after `_MAX_TAIL` of silence, or when the connection is lost."""
    with contextlib.suppress(TimeoutError, *LOST):
        async with asyncio.timeout(_MAX_TAIL):
            return await read()
    return b""


async def _drain(response: ModelResponse) -> None:
    """Reads the bytes after the last event: only a response that was read to its end returns its connection to the
    pool.
    """
    with contextlib.suppress(TimeoutError, *LOST):
        async with asyncio.timeout(_MAX_DRAIN):
            while await response.read():
                pass


class _TokenCount(msgspec.Struct):
    input_tokens: int


async def read_token_count(response: ModelResponse) -> int:
    """Returns the number of tokens that a provider counted. Raises TransientError if the body is not a count."""
    try:
        return msgspec.json.decode(await response.whole(MAX_COUNT_BYTES), type=_TokenCount).input_tokens
    except msgspec.DecodeError as error:
        raise TransientError("bad_count", "The provider's count of tokens could not be read.") from error
