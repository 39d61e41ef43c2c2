"""The response of every stream, as an ASGI application: its messages, their order, and the end.

These tests would detect a different behaviour in a version of sse-starlette.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sse_starlette import EventSourceResponse
from starlette.types import Message

from tests.support.turns import begun, sealed, text, turn_of
from turnstream.api.caller import OwnerPlans
from turnstream.api.events import frame
from turnstream.api.http.connection import OUTLET
from turnstream.api.streams.direct import TurnResponse
from turnstream.api.streams.response import HELLO, FrameResponse, OwnerStreams, access_ended
from turnstream.domain.cursor import START
from turnstream.domain.errors import Unauthorized
from turnstream.domain.events import BlockStart
from turnstream.domain.identity import Identity
from turnstream.domain.plans import Plan, Plans
from turnstream.domain.turns import Turn
from turnstream.stream.delivery import Deliveries
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView
from turnstream.stream.reader import PORTION, TurnReader

GET = {"type": "http", "method": "GET", "state": {"identity": Identity("ada")}}
NO_LIMIT = OwnerPlans(Plans(Plan("none")))
BLOCK = b'event: block_delta\ndata: {"text":"\xf0\x9f\x9a\xa2\\r\\n"}\n\n'


class Connection:
    """The server's side of one request. `messages` are the sent messages of the response."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.sent = asyncio.Event()
        self.disconnected = asyncio.Event()

    async def receive(self) -> Message:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        self.sent.set()

    async def wait_for(self, body: bytes) -> None:
        while body not in self.body:
            self.sent.clear()
            await self.sent.wait()

    def disconnect(self) -> None:
        self.disconnected.set()

    @property
    def get(self) -> dict[str, Any]:
        return GET

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def is_complete(self) -> bool:
        return not self.messages[-1].get("more_body", True)


class Outlet(Connection):
    """A connection with the direct path around its `send`."""

    is_writable = True
    on_writable: Callable[[], None]
    on_end: Callable[[], None]

    @contextmanager
    def used(self, on_writable: Callable[[], None], on_end: Callable[[], None]) -> Iterator[None]:
        self.on_writable, self.on_end = on_writable, on_end
        yield

    def write(self, data: bytes) -> None:
        assert self.is_writable
        self.messages.append({"type": "http.response.body", "body": data, "more_body": True})
        self.sent.set()

    def disconnect(self) -> None:
        self.on_end()

    @property
    def get(self) -> dict[str, Any]:
        return {**GET, "extensions": {OUTLET: {"outlet": self}}}


both = pytest.mark.parametrize("kind", [Connection, Outlet])


class Frames:
    """Gives some frames; then it ends, fails, or is silent for ever."""

    def __init__(self, count: int, then: str = "end") -> None:
        self.count = count
        self.then = then
        self.closed = False

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            for _ in range(self.count):
                yield BLOCK
            if self.then == "fail":
                raise LookupError
            if self.then == "silence":
                await asyncio.Event().wait()
        finally:
            self.closed = True


@both
async def test_frames_are_sent_as_they_are_between_the_first_bytes_and_the_end(kind: type[Connection]) -> None:
    connection = kind()
    await FrameResponse(Frames(3)(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT))(
        connection.get, connection.receive, connection.send
    )
    assert [message["type"] for message in connection.messages] == ["http.response.start", *["http.response.body"] * 5]
    assert [message["body"] for message in connection.messages[1:]] == [HELLO, BLOCK, BLOCK, BLOCK, b""]
    assert [message["more_body"] for message in connection.messages[1:]] == [True, True, True, True, False]
    headers = dict(connection.messages[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"cache-control"] == b"no-store, no-transform"
    assert headers[b"x-accel-buffering"] == b"no"
    assert b"content-length" not in headers


@both
async def test_the_first_bytes_and_heartbeats_do_not_wait_for_a_frame(kind: type[Connection]) -> None:
    connection = kind()
    response = FrameResponse(Frames(1, "silence")(), life=60, heartbeat=0.01, streams=OwnerStreams(NO_LIMIT))
    streaming = asyncio.create_task(response(connection.get, connection.receive, connection.send))
    await connection.wait_for(b": ping - ")
    assert connection.body.startswith(HELLO + BLOCK)
    assert b"\r" not in connection.body
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)


@both
@pytest.mark.parametrize("cuts", [False, True])
async def test_after_its_life_a_stream_ends_and_its_frames_are_closed(cuts: bool, kind: type[Connection]) -> None:
    connection, frames = kind(), Frames(1, "silence")
    response = FrameResponse(frames(), life=0.02, heartbeat=60, streams=OwnerStreams(NO_LIMIT), cuts=cuts)
    await response(connection.get, connection.receive, connection.send)
    assert frames.closed
    assert connection.body == HELLO + BLOCK
    assert connection.is_complete is not cuts


@both
@pytest.mark.parametrize("cuts", [False, True])
async def test_frames_that_end_by_themselves_are_a_complete_body(cuts: bool, kind: type[Connection]) -> None:
    connection = kind()
    await FrameResponse(Frames(1)(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT), cuts=cuts)(
        connection.get, connection.receive, connection.send
    )
    assert connection.is_complete


@both
async def test_a_client_that_disconnects_ends_the_stream_at_once(kind: type[Connection]) -> None:
    connection, frames = kind(), Frames(1, "silence")
    response = FrameResponse(frames(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT))
    streaming = asyncio.create_task(response(connection.get, connection.receive, connection.send))
    await connection.wait_for(BLOCK)
    connection.disconnect()
    await streaming
    assert frames.closed


@dataclass
class Parts:
    """Gives a frame in two parts, with a wait between the parts, then is silent for ever."""

    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        yield BLOCK[:30]
        yield b""
        await self.goes_on.wait()
        yield BLOCK[30:]
        yield b""
        await asyncio.Event().wait()


@both
async def test_no_heartbeat_is_sent_within_a_frame(kind: type[Connection]) -> None:
    connection, parts = kind(), Parts()
    response = FrameResponse(parts(), life=60, heartbeat=0.01, streams=OwnerStreams(NO_LIMIT))
    streaming = asyncio.create_task(response(connection.get, connection.receive, connection.send))
    await connection.wait_for(BLOCK[:30])
    await asyncio.sleep(0.05)
    parts.goes_on.set()
    await connection.wait_for(BLOCK)
    await connection.wait_for(b": ping - ")
    assert connection.body.partition(BLOCK)[0] == HELLO
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)


@both
@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_stream_that_loses_its_credential_within_a_frame_has_no_last_frame(
    is_whole: bool, kind: type[Connection]
) -> None:
    connection, parts, streams, refusal = kind(), Parts(), OwnerStreams(NO_LIMIT), Unauthorized("It was revoked.")
    if is_whole:
        parts.goes_on.set()
    response = FrameResponse(parts(), life=60, heartbeat=60, streams=streams)
    streaming = asyncio.create_task(response(connection.get, connection.receive, connection.send))
    await connection.wait_for(BLOCK if is_whole else BLOCK[:30])
    (stream,) = streams.all()
    stream.end(refusal)
    await streaming
    assert connection.is_complete
    assert connection.body == HELLO + (BLOCK + access_ended(refusal) if is_whole else BLOCK[:30])


@both
async def test_little_is_made_for_a_client_that_disconnects_in_the_middle_of_a_long_text(
    kind: type[Connection],
) -> None:
    connection, made = kind(), 0

    async def frames() -> AsyncGenerator[bytes, None]:
        nonlocal made
        while made < 1000:  # none of them waits
            made += 1
            if made == 3:
                connection.disconnect()
            yield bytes(PORTION)

    response = FrameResponse(frames(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT))
    await response(connection.get, connection.receive, connection.send)
    assert made < 10


async def test_a_stream_is_ended_when_the_server_shuts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library finds the uvicorn server by the handler of SIGTERM, as `turnstream serve` installs it."""

    class Server:
        should_exit = False

        def handle_exit(self) -> None: ...

    async def stream() -> None:
        connection, frames = Connection(), Frames(1, "silence")
        response = FrameResponse(frames(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT))
        streaming = asyncio.create_task(response(GET, connection.receive, connection.send))
        await connection.wait_for(BLOCK)
        server.should_exit = True
        await streaming
        assert frames.closed
        assert connection.is_complete

    server = Server()
    monkeypatch.setattr("signal.getsignal", lambda _signal: server.handle_exit)
    # The library has one watcher for each thread. The watcher of this thread may belong to a stopped event loop of
    # other tests.
    await asyncio.to_thread(asyncio.run, stream())


@both
async def test_frames_that_fail_are_the_failure_of_the_response(kind: type[Connection]) -> None:
    connection, frames = kind(), Frames(1, "fail")
    with pytest.raises(LookupError):
        await FrameResponse(frames(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT))(
            connection.get, connection.receive, connection.send
        )
    assert frames.closed


async def test_a_head_request_is_answered_without_a_stream() -> None:
    connection, frames = Connection(), Frames(1, "silence")
    await FrameResponse(frames(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT))(
        {**GET, "method": "HEAD"}, connection.receive, connection.send
    )
    assert connection.body == b""
    assert connection.is_complete


@both
async def test_a_client_that_does_not_read_holds_up_the_end_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch, kind: type[Connection]
) -> None:
    monkeypatch.setattr("turnstream.api.streams.response._END_TIMEOUT", 0.01)
    frames = Frames(1, "silence")
    is_stuck = asyncio.Event()

    async def send(message: Message) -> None:
        if message.get("body") in {BLOCK, b""}:
            is_stuck.set()
            await asyncio.Event().wait()

    await FrameResponse(frames(), life=0.02, heartbeat=60, streams=OwnerStreams(NO_LIMIT))(
        kind().get, Connection().receive, send
    )
    assert is_stuck.is_set()
    assert frames.closed


def test_no_member_of_the_library_is_overridden_but_public_ones() -> None:
    base = {name for each in EventSourceResponse.__mro__ for name in vars(each)}
    mine = {name for name in vars(FrameResponse) if inspect.isfunction(vars(FrameResponse)[name])}
    assert mine & base == {"__init__", "__call__"}
    assert {"_frames", "_cuts", "_life", "_send", "_events"}.isdisjoint(vars(EventSourceResponse(Frames(0)())))


# --- the streams of turns --------------------------------------------------------------------------------------------

COMPLETE = turn_of(text(0, 1, "ahoy"), rounds=[sealed(1, "end_turn")], status="complete")


@dataclass
class Streaming:
    """A turn that runs, and the streams of its readers."""

    view: LiveView = field(default_factory=lambda: LiveView(turn_of(rounds=[begun()])))
    streams: OwnerStreams = field(default_factory=lambda: OwnerStreams(NO_LIMIT))
    directory: Directory = field(default_factory=Directory)
    deliveries: Deliveries = field(default_factory=Deliveries)

    def response(self, *, life: float = 60, heartbeat: float = 60) -> TurnResponse:
        async def never() -> Turn:
            raise AssertionError

        reader = TurnReader(self.directory, self.view, never, START, frame, shares=True)
        return TurnResponse(reader, reader.look(), self.deliveries, life, heartbeat, self.streams)

    @asynccontextmanager
    async def sent_to(self, connection: Outlet, **times: float) -> AsyncIterator[asyncio.Task[None]]:
        with self.directory.host(self.view, "ada"):
            task = asyncio.create_task(self.response(**times)(connection.get, connection.receive, connection.send))
            await connection.wait_for(b"turn_start")
            yield task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not self.streams.all()
        assert not self.view.wakeup.has_waiters


def is_whole(connection: Connection) -> bool:
    """The body was ended, once, and last."""
    ends = [message for message in connection.messages[1:] if not message["more_body"]]
    return ends == connection.messages[-1:]


async def test_the_stream_of_a_turn_is_the_same_whatever_sends_it() -> None:
    sent = []
    outlet = Outlet()
    for connection, scope in ((outlet, outlet.get), (Connection(), GET)):
        await Streaming(LiveView(COMPLETE)).response()(scope, connection.receive, connection.send)
        assert is_whole(connection)
        headers = {pair for pair in connection.messages[0]["headers"] if pair[0] != b"connection"}
        sent.append((connection.messages[0]["status"], headers, connection.body))
    assert sent[0] == sent[1]
    assert sent[0][2].startswith(HELLO + b"id: 1-1-0\nevent: turn_start\n")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_server_without_an_outlet_is_sent_to_by_the_library(method: str) -> None:
    connection, streaming = Connection(), Streaming(LiveView(COMPLETE))
    scope = {**GET, "method": method} if method == "GET" else {**Outlet().get, "method": method}
    await streaming.response()(scope, connection.receive, connection.send)
    assert is_whole(connection)
    assert (b"turn_complete" in connection.body) is (method == "GET")


async def test_text_and_heartbeats_are_written_past_the_task_and_skip_a_client_that_does_not_read() -> None:
    connection, streaming = Outlet(), Streaming()
    async with streaming.sent_to(connection, heartbeat=0.01):
        streaming.view.open_block(BlockStart(1, 0, 1, "text", None, None))
        streaming.view.append("ahoy")
        await connection.wait_for(b'"text":"ahoy"')
        await connection.wait_for(b": ping - ")
        connection.is_writable = False
        before = connection.body
        streaming.view.append(" there")
        await asyncio.sleep(0.03)
        assert connection.body == before
        connection.is_writable = True
        connection.on_writable()
        await connection.wait_for(b'"offset":4,"text":" there"')


async def test_a_client_that_disconnects_and_a_server_that_shuts_down_end_the_stream_of_a_turn() -> None:
    connection, streaming = Outlet(), Streaming()
    async with streaming.sent_to(connection) as task:
        connection.on_end()
        await task
        assert is_whole(connection)


async def test_after_its_life_the_stream_of_a_turn_ends() -> None:
    connection, streaming = Outlet(), Streaming()
    async with streaming.sent_to(connection, life=0.02) as task:
        await task
        assert is_whole(connection)


async def test_the_stream_of_a_turn_ends_with_its_credential() -> None:
    connection, streaming, refusal = Outlet(), Streaming(), Unauthorized("It was revoked.")
    async with streaming.sent_to(connection) as task:
        (stream,) = streaming.streams.all()
        stream.end(refusal)
        await task
        assert is_whole(connection)
        assert connection.body.endswith(access_ended(refusal))
