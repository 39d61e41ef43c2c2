"""HTTP below the calls: limits of a connection, which apply before authentication, and headers of every response."""

import asyncio
import re
import resource
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Self

import structlog
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from turnstream.api.http.errors import cut_off
from turnstream.kit.ids import new_id
from turnstream.storage.database import ANONYMOUS, OF_REQUEST
from turnstream.telemetry import HTTP_REQUESTS, HTTP_SECONDS, STALLED_READERS

log = structlog.get_logger(__name__)

# Most bytes of a request besides its body: for request line and headers, and again for chunk extensions and trailers.
LONGEST_HEAD = 64 * 1024
# Most seconds until the headers of a request are complete, and between two pieces of a body.
HEAD_TIMEOUT = 10.0
BODY_TIMEOUT = 30.0
# Seconds until an idle connection is closed: more than load balancers keep one, whose request would meet the close.
KEEP_ALIVE = 620
# Most requests that begin in one iteration of the event loop. Each request takes 0.1 to 0.2 ms until its first wait.
_AT_ONCE = 20
# If connections use more than this share of the file descriptors, each new connection closes an idle connection.
_DESCRIPTORS = 0.8
REQUEST_ID = "X-Request-ID"
# The ids that a proxy or a client may give a request. The characters have no special meaning in logs and headers.
_GIVEN_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
_SAFE = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    # Since cookies may identify owners, a cache could send the answer of one owner to another owner.
    (b"cache-control", b"no-store"),
    # Pages of allowed origins use CORS, to which this header does not apply.
    (b"cross-origin-resource-policy", b"same-origin"),
)
# The key of the `Outlet` among the ASGI extensions in the scope of a request.
OUTLET = "turnstream.outlet"


class Outlet:
    """Writes the body of one response for a sender that has no task in which to wait. The outlet is an ASGI extension
    of this server; `send` still sends the start and the end of the response.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection

    def used(self, on_writable: Callable[[], None], on_end: Callable[[], None]) -> Self:
        """Calls `on_writable` when `is_writable` has become true again, and `on_end` when the client has disconnected
        or the server shuts down. A connection sends one response at a time.
        """
        connection = self._connection
        connection.user = on_writable, on_end
        if connection.transport.is_closing() or connection.shuts_down:
            on_end()
        else:  # a large body or a pipelined request has paused it, and a paused connection detects no disconnect
            connection.flow.resume_reading()
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None:
        self._connection.user = None

    @property
    def is_writable(self) -> bool:
        return not self._connection.flow.write_paused

    def write(self, data: bytes) -> None:
        """Sends a part of the body as one chunk, as uvicorn does. May be called only while `is_writable` is true."""
        assert self.is_writable, "a write to a full connection"
        if not self._connection.transport.is_closing():
            self._connection.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def outlet_of(scope: Scope) -> Outlet | None:
    """Returns None on any other server, and for a HEAD request, whose response has no body."""
    outlet: Outlet | None = scope.get("extensions", {}).get(OUTLET, {}).get("outlet")
    return None if scope["method"] == "HEAD" else outlet


class Connection(HttpToolsProtocol):
    """A connection with limits. A request with a head that is too long gets the status 431. The server disconnects a
    client that does not send its request in time, or that reads nothing for `stall` seconds; a reader can reconnect
    with its cursor. Beyond `most` connections, each new connection closes the connection that has been idle longest.
    """

    # With these in its `__dict__`, an instance would have more than 30 members there, and its dict would share no keys
    # with other instances: 1.3 KiB more for a connection.
    __slots__ = (
        *("_head", "_head_too_long", "_idle_since", "_is_stalled", "_most", "_read_timer", "_reads_since", "_running"),
        *("_stall", "_stall_timer", "_timeout", "shuts_down", "user"),
    )

    def __init__(self, *args: Any, stall: float, most: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stall = stall
        self._most = most
        self._head = 0  # bytes of the request besides its body, since its last complete part
        self._head_too_long = False
        self._reads_since: float | None = None  # when the server began to wait for the rest of a request
        self._timeout = HEAD_TIMEOUT
        self._read_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._is_stalled = self.shuts_down = False
        self._running = self.cycle  # the request that is being answered; `cycle` may be a later, pipelined request
        self._idle_since = 0.0
        self.user: tuple[Callable[[], None], Callable[[], None]] | None = None  # the callbacks of `Outlet.used`

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._expect(HEAD_TIMEOUT)
        if len(self.connections) > self._most:
            mine = [each for each in self.connections if isinstance(each, Connection)]
            if idle := [each for each in mine if each.is_idle and not each.transport.is_closing()]:
                min(idle, key=lambda each: each._idle_since).transport.close()  # noqa: SLF001, of this class

    def connection_lost(self, exc: Exception | None) -> None:
        self.cycle = self._running
        super().connection_lost(exc)
        self._count_stalled(False)
        for timer in (self._read_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._end_user()
        if self.cycle is not None:
            # The outlet refers to this connection: else only the garbage collector would free the connection.
            self.cycle.scope.pop("extensions", None)

    def shutdown(self) -> None:
        super().shutdown()
        self.shuts_down = True
        self._end_user()

    def _end_user(self) -> None:
        if self.user is not None:
            self.user[1]()

    @property
    def is_idle(self) -> bool:
        """Whether no request of this connection is being answered."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first

    # --- reading -----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._reads_since is None and self.is_idle:  # perhaps only empty lines before a request
            self._expect(HEAD_TIMEOUT)
        self._head += len(data)
        super().data_received(data)
        if self._head > LONGEST_HEAD and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect(HEAD_TIMEOUT)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > LONGEST_HEAD:
            self._head_too_long = True
            raise ValueError("the head is too long")  # the parser stops; uvicorn calls `send_400_response`
        self._head = 0
        self._expect(BODY_TIMEOUT)
        self.scope["extensions"] = {OUTLET: {"outlet": Outlet(self)}}
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        self._watch_stall()

    def on_body(self, body: bytes) -> None:
        self._head = max(0, self._head - 8 * len(body))  # a chunk of one byte has five bytes of framing
        self._expect(BODY_TIMEOUT)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head, self._reads_since = 0, None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()
        self._watch_stall()

    def send_400_response(self, msg: str) -> None:
        if self._head_too_long:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
        body = f"The request has more than {LONGEST_HEAD} bytes besides its body.".encode()
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()

    def _expect(self, timeout: float) -> None:
        """Limits the time for the next part of a request, in seconds. A running timer is renewed only when it fires."""
        self._reads_since, self._timeout = self.loop.time(), timeout
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(min(timeout, HEAD_TIMEOUT), self._check_reading)

    def _check_reading(self) -> None:
        self._read_timer = None
        if self._reads_since is None:
            return
        left = self._reads_since + self._timeout - self.loop.time()
        if self.flow.read_paused:  # the handler has not read the earlier data
            left = self._timeout
        if left > 0:
            self._read_timer = self.loop.call_later(left, self._check_reading)
        else:
            self.transport.close()

    # --- writing -----------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._count_stalled(True)
        self._watch_stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._count_stalled(False)
        self._watch_stall()
        if self.user is not None:
            self.user[0]()

    def _count_stalled(self, is_stalled: bool) -> None:
        STALLED_READERS.inc(is_stalled - self._is_stalled)
        self._is_stalled = is_stalled

    def _watch_stall(self) -> None:
        """Watches a client that must read: the buffer is full, or it has the rest of a complete response."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        unread = self.transport.get_write_buffer_size() if self.flow.write_paused or self.is_idle else 0
        self._stall_timer = self.loop.call_later(self._stall, self._check_stall, unread) if unread else None

    def _check_stall(self, before: int) -> None:
        if (unread := self.transport.get_write_buffer_size()) < before:
            self._watch_stall()
        else:
            log.info("connection.stalled", unread=unread)
            self.transport.abort()


def connections(heartbeat: float) -> Callable[..., Connection]:
    """Returns the factory of connections, and raises the limit of file descriptors as far as the machine allows. The
    server disconnects a reader of a stream that leaves two heartbeats unread.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = int(hard * _DESCRIPTORS) if hard != resource.RLIM_INFINITY else 1_000_000
    return partial(Connection, stall=2 * heartbeat, most=most)


class RequestPace:
    """Spreads the starts of simultaneous requests, for example after a restart of a proxy. In one iteration of the
    event loop at most `_AT_ONCE` requests begin, in the order of arrival. Streams continue between the iterations.
    """

    def __init__(self) -> None:
        self._begun = 0  # in this iteration
        self._waiting = deque[asyncio.Future[None]]()

    async def begin(self) -> None:
        """Waits until the request may begin."""
        loop = asyncio.get_running_loop()
        if self._begun == _AT_ONCE:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
            return
        if self._begun == 0:
            loop.call_soon(self._begin_waiting)
        self._begun += 1

    def _begin_waiting(self) -> None:
        """Lets waiting requests begin. Runs once in each iteration of the event loop, as long as requests begin."""
        self._begun = 0
        while self._waiting and self._begun < _AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # else the request was cancelled
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            asyncio.get_running_loop().call_soon(self._begin_waiting)


class SafeHeaders:
    """Middleware that adds headers to every response. No browser guesses a media type or runs scripts, unless the
    response has its own policy, as the chat page has. A response of a standby has its age. Every response has the id of
    its request. As the outermost layer, the middleware also spreads the starts of requests, and counts responses.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._pace = RequestPace()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, is_begun = perf_counter(), False
        OF_REQUEST.set(True)
        ANONYMOUS.set(True)  # until the request's credential is verified
        state = scope.setdefault("state", {})
        given = Headers(scope=scope).get(REQUEST_ID, "")
        state["request_id"] = request_id = given if _GIVEN_ID.fullmatch(given) else str(new_id())

        async def send_safely(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                # Only calls of the table are labels: an address that a client invents must not become a metric series.
                endpoint = state.get("endpoint")
                call = "other" if endpoint is None else endpoint.call
                HTTP_REQUESTS.labels(call, message["status"]).inc()
                HTTP_SECONDS.labels(call).observe(perf_counter() - start)
                headers = [each for each in message.get("headers", ()) if each[0] != b"x-request-id"]
                own = {name for name, _ in headers}
                headers += [header for header in _SAFE if header[0] not in own]
                headers.append((b"x-request-id", request_id.encode("latin-1")))
                if "age" in state:
                    headers.append((b"age", str(state["age"]).encode()))
                message["headers"] = headers
            await send(message)

        try:
            await self._pace.begin()
            await self._app(scope, receive, send_safely)
        except asyncio.CancelledError:  # the server is stopping; uvicorn would answer 500
            if is_begun:
                raise
            response = await cut_off(Request(scope, receive))
            await response(scope, receive, send_safely)
