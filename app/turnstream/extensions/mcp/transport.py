"""Transports the bytes of a connection to an MCP server, which is a child process or is reached over HTTP. The size of
a message is measured while it is read.
"""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from types import TracebackType
from typing import Self

import anyio
import httpx2
import structlog
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import types
from mcp.client._transport import ReadStream, TransportStreams
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from yarl import URL

from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.oauth import Challenge, challenge_of
from turnstream.libraries.json_weight import weight_of
from turnstream.libraries.outgoing.addresses import Allowed, UrlRefused

log = structlog.get_logger(__name__)

# Limit for one message, measured in bytes of plain text (`weight_of`), like an event of a provider. A file of 5 MB in
# base64 fits.
MAX_MESSAGE_BYTES = 8_000_000
TOO_LONG = f"the server sent a message of more than {MAX_MESSAGE_BYTES:,} bytes"
_MAX_SKIPPED = 1_000_000_000  # bytes of an overlong line from a process before the line counts as endless
_PIECE = 65_536
_ENDS_OF_EVENTS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_TIMEOUT = httpx2.Timeout(30, read=None)  # no limit for reads: the policy of a tool limits its calls
_CONNECT = 30  # seconds
_GOODBYE = httpx2.Timeout(2)
_TIME_TO_EXIT = 2.0  # seconds to exit after each of: end of input, SIGTERM, SIGKILL

# The id of a response, directly after its `jsonrpc` or at its end: an id at another place may belong to the result.
_ID = rb'"id"\s*:\s*(\d+)\s*'
_FIRST_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb",")
_LAST_ID = re.compile(rb",\s*" + _ID + rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
# bytes that are kept at the start and at the end of an overlong line: the id is in one of the two parts
_KEPT_END = 1000

_Incoming = SessionMessage | Exception


@asynccontextmanager
async def transport(
    server: McpServer, ended: Callable[[], None], bearer: "Bearer | None" = None
) -> AsyncIterator[TransportStreams]:
    streams = _over_stdio(server) if server.url is None else _over_http(server, server.url, bearer)
    async with streams as (read, write):
        yield _WatchedStream(read, ended), write


class _WatchedStream:
    """A read stream that reports its end: the SDK's client detects the end only at the next use."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Context | None:
        """The context in which the SDK's client handles a message; None if the stream has no context."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        return await self._stream.receive()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            self._ended()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, traceback)


# --- over HTTP -------------------------------------------------------------------------------------------------------


class MessageTooLong(httpx2.SSEError, httpx2.StreamError):
    """A response contains an overlong message. The SDK answers the request with an error that has the text of this
    exception. The SDK expects the first base class while it reads events, and the second while it reads JSON.
    """


class Bearer:
    """The token of an owner on one connection. `challenge` is set if the server refused the token before it accepted a
    call of a tool. The tool was then not called.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        self.challenge: Challenge | None = None
        self._accepted = False

    def note(self, response: httpx2.Response) -> None:
        if response.request.method != "POST" or self._accepted:
            return
        if response.is_success:
            self._accepted = b'"tools/call"' in response.request.content
        else:
            self.challenge = challenge_of(response) or self.challenge


@asynccontextmanager
async def _over_http(server: McpServer, url: str, bearer: Bearer | None) -> AsyncIterator[TransportStreams]:
    headers = dict(server.headers)
    if bearer is not None:
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        headers["Authorization"] = f"Bearer {bearer.token}"

    async def limit_goodbye(request: httpx2.Request) -> None:
        """Limits the time of the DELETE at the end of a session, because the server may no longer answer."""
        if request.method == "DELETE":
            request.extensions["timeout"] = _GOODBYE.as_dict()

    async def bound(response: httpx2.Response) -> None:
        if bearer is not None:
            bearer.note(response)
        unread = httpx2.Response(response.status_code, headers=response.headers, stream=response.stream)
        response.headers.pop("content-encoding", None)
        is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = _WeighedBody(unread, _ENDS_OF_EVENTS if is_events else ())

    async with (
        httpx2.AsyncClient(
            headers=headers,
            timeout=_TIMEOUT,
            event_hooks={"request": [limit_goodbye], "response": [bound]},
            transport=None if server.allowed is None else _CheckedTransport(url, server.allowed),
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=None) as streams,
    ):
        yield streams


class _CheckedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to a server that an owner has added. The address is checked when a socket is opened, after the
    lookup of the host's name, so that the name cannot lead to another address in between. Redirects to another server
    are not followed.
    """

    def __init__(self, url: str, allowed: Allowed) -> None:
        self._allowed = allowed
        self._origin = URL(url).origin()
        is_free = allowed.allows_host(self._origin.host or "")
        self._session = ClientSession(
            connector=TCPConnector() if is_free else TCPConnector(socket_factory=allowed.open_socket),
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None, sock_connect=_CONNECT),
            auto_decompress=False,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = URL(str(request.url), encoded=True)
        try:
            self._allowed.check(url)
            if url.origin() != self._origin:
                raise UrlRefused("the URL leads to another server")
            content = await request.aread()
            response = await self._session.request(
                request.method, url, data=content or None, headers=request.headers, allow_redirects=False
            )
        except (ClientError, ValueError, OSError) as error:  # its message may contain an internal address
            raise httpx2.ConnectError(f"the server cannot be reached ({type(error).__name__})") from None
        return httpx2.Response(response.status, headers=list(response.headers.items()), stream=_StreamedBody(response))

    async def aclose(self) -> None:
        await self._session.close()


class _StreamedBody(httpx2.AsyncByteStream):
    def __init__(self, response: ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except (ClientError, OSError) as error:
            raise httpx2.ReadError(type(error).__name__) from error

    async def aclose(self) -> None:
        self._response.close()


class _WeighedBody(httpx2.AsyncByteStream):
    """The decompressed body of a response. It contains one message, or several messages, each of which ends with one of
    `ends`. Raises MessageTooLong.
    """

    def __init__(self, response: httpx2.Response, ends: Sequence[bytes]) -> None:
        self._response = response
        self._ends = ends

    async def __aiter__(self) -> AsyncIterator[bytes]:
        weight, last = 0, b""
        async for chunk in self._response.aiter_bytes():
            for start in range(0, len(chunk), _PIECE):
                piece = chunk[start : start + _PIECE]
                seen = last + piece  # an end may be split between pieces
                ends = [(seen.find(end), seen.rfind(end)) for end in self._ends if end in seen]
                if weight + weight_of(seen[: min(ends)[0]] if ends else piece) > MAX_MESSAGE_BYTES:
                    raise MessageTooLong(TOO_LONG)
                # A message between the first and the last end cannot be too long: a piece is shorter than the limit.
                weight = weight_of(seen[max(end for _, end in ends) :]) if ends else weight + weight_of(piece)
                last = seen[-3:]
            yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


# --- over stdio ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _over_stdio(server: McpServer) -> AsyncIterator[TransportStreams]:
    """Starts the process in its own process group. If the process does not exit when its standard input is closed, it
    is killed.

    The SDK's client for stdio is not used, because it would read lines of any length into memory.
    """
    process = await asyncio.create_subprocess_exec(
        server.command or "",
        *server.args,
        stdin=PIPE,
        stdout=PIPE,
        stderr=sys.__stderr__ or sys.stderr,
        env=get_default_environment() | dict(server.env),
        cwd=server.cwd,
        start_new_session=True,
    )
    received, read = anyio.create_memory_object_stream[_Incoming](0)
    write, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    reading = asyncio.create_task(_read(server.name, process, received))
    writing = asyncio.create_task(_write(process, to_send, received))
    try:
        yield read, write
    finally:
        with anyio.CancelScope(shield=True):
            read.close()
            write.close()
            try:
                # lets the last messages be sent, such as a cancellation
                await asyncio.wait([writing], timeout=_TIME_TO_EXIT)
                await _stop(process)
            finally:  # the shield blocks cancellations by the SDK, but not the cancellation of the task
                _kill(process, signal.SIGKILL)
                reading.cancel()
                writing.cancel()


async def _read(name: str, process: Process, received: MemoryObjectSendStream[_Incoming]) -> None:
    """Sends the messages of the process to `received`, until its output ends or contains an endless line."""
    assert process.stdout is not None
    lines = LineSplitter()
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError), received:
        while chunk := await process.stdout.read(_PIECE):
            for line, is_whole in lines.feed(chunk):
                if not is_whole:
                    log.warning("mcp.too_long", server=name, error=TOO_LONG)
                message = message_of(line) if is_whole else refusal_of(line)
                if message is not None:
                    await received.send(message)
            if lines.is_endless:
                log.warning("mcp.too_long", server=name, error="the server sent a line without an end")
                break
    # a process that is blocked in a write does not exit, so its output is read to the end
    while await process.stdout.read(_PIECE):
        pass


async def _write(
    process: Process,
    to_send: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[_Incoming],
) -> None:
    assert process.stdin is not None
    with to_send, suppress(OSError):
        async for sent in to_send:
            process.stdin.write(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await process.stdin.drain()
        return
    received.close()  # calls must not wait for a process that does not read


async def _stop(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if await _has_exited(process):
            return
        _kill(process, number)
    await _has_exited(process)


def _kill(process: Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


async def _has_exited(process: Process) -> bool:
    # `wait` also waits for the pipes, which a child of the process may keep open.
    with suppress(TimeoutError):
        async with asyncio.timeout(_TIME_TO_EXIT):
            await process.wait()
    return process.returncode is not None


class LineSplitter:
    """Splits bytes into lines. Keeps only the start and the end of an overlong line."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._weight = 0

    @property
    def is_endless(self) -> bool:
        return self._weight > _MAX_SKIPPED

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yields each line that `chunk` completes, and whether the whole line was kept."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._take(end)
            yield bytes(self._line), self._weight <= MAX_MESSAGE_BYTES
            self._line.clear()
            self._weight = 0
        self._take(rest)

    def _take(self, piece: bytes) -> None:
        self._line += piece
        self._weight += weight_of(piece) if self._weight <= MAX_MESSAGE_BYTES else len(piece)
        if self._weight > MAX_MESSAGE_BYTES:
            del self._line[_KEPT_END:-_KEPT_END]


def message_of(line: bytes) -> _Incoming:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


def refusal_of(line: bytes) -> SessionMessage | None:
    """Returns the error that replaces an overlong response; None if the kept parts do not contain the id of its
    request.
    """
    found = _FIRST_ID.match(line) or _LAST_ID.search(line)
    if found is None:
        return None
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=TOO_LONG)
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error))
