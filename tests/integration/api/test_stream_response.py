"""The response of every stream, as an ASGI application: what is sent, in which order, and how it ends.

These tests would notice a version of sse-starlette that does otherwise.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator

import pytest
from sse_starlette import EventSourceResponse
from starlette.types import Message

from app.api.plans import OwnerPlans
from app.api.streams.response import HELLO, FrameResponse, OwnerStreams
from app.domain.identity import Identity
from app.domain.plans import Plan, Plans
from app.stream.reader import PORTION

GET = {"type": "http", "method": "GET", "state": {"identity": Identity("ada")}}
NO_LIMIT = OwnerPlans(Plans(Plan("none")))
BLOCK = b'event: block_delta\ndata: {"text":"\xf0\x9f\x9a\xa2\\r\\n"}\n\n'


class Connection:
    """The server's side of one request. `messages` are what the response has sent."""

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

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def is_complete(self) -> bool:
        return not self.messages[-1].get("more_body", True)


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


async def test_frames_are_sent_as_they_are_between_the_first_bytes_and_the_end() -> None:
    connection = Connection()
    await FrameResponse(Frames(3)(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT))(
        GET, connection.receive, connection.send
    )
    assert [message["type"] for message in connection.messages] == ["http.response.start", *["http.response.body"] * 5]
    assert [message["body"] for message in connection.messages[1:]] == [HELLO, BLOCK, BLOCK, BLOCK, b""]
    assert [message["more_body"] for message in connection.messages[1:]] == [True, True, True, True, False]
    headers = dict(connection.messages[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"cache-control"] == b"no-store, no-transform"
    assert headers[b"x-accel-buffering"] == b"no"
    assert b"content-length" not in headers


async def test_the_first_bytes_and_heartbeats_do_not_wait_for_a_frame() -> None:
    connection = Connection()
    response = FrameResponse(Frames(1, "silence")(), life=60, heartbeat=0.01, streams=OwnerStreams(NO_LIMIT))
    streaming = asyncio.create_task(response(GET, connection.receive, connection.send))
    await connection.wait_for(b": ping - ")
    assert connection.body.startswith(HELLO + BLOCK)
    assert b"\r" not in connection.body
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)


@pytest.mark.parametrize("cuts", [False, True])
async def test_after_its_life_a_stream_ends_and_its_frames_are_closed(cuts: bool) -> None:
    connection, frames = Connection(), Frames(1, "silence")
    response = FrameResponse(frames(), life=0.02, heartbeat=60, streams=OwnerStreams(NO_LIMIT), cuts=cuts)
    await response(GET, connection.receive, connection.send)
    assert frames.closed
    assert connection.body == HELLO + BLOCK
    assert connection.is_complete is not cuts


@pytest.mark.parametrize("cuts", [False, True])
async def test_frames_that_end_by_themselves_are_a_complete_body(cuts: bool) -> None:
    connection = Connection()
    await FrameResponse(Frames(1)(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT), cuts=cuts)(
        GET, connection.receive, connection.send
    )
    assert connection.is_complete


async def test_a_client_that_disconnects_ends_the_stream_at_once() -> None:
    connection, frames = Connection(), Frames(1, "silence")
    response = FrameResponse(frames(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT))
    streaming = asyncio.create_task(response(GET, connection.receive, connection.send))
    await connection.wait_for(BLOCK)
    connection.disconnected.set()
    await streaming
    assert frames.closed


async def test_little_is_made_for_a_client_that_disconnects_in_the_middle_of_a_long_text() -> None:
    connection, made = Connection(), 0

    async def frames() -> AsyncGenerator[bytes, None]:
        nonlocal made
        while made < 1000:  # none of them waits
            made += 1
            if made == 3:
                connection.disconnected.set()
            yield bytes(PORTION)

    response = FrameResponse(frames(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT))
    await response(GET, connection.receive, connection.send)
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
    # The library has one watcher for each thread; the one of this thread may belong to an event loop of other tests
    # that stands still now.
    await asyncio.to_thread(asyncio.run, stream())


async def test_frames_that_fail_are_the_failure_of_the_response() -> None:
    connection, frames = Connection(), Frames(1, "fail")
    with pytest.raises(LookupError):
        await FrameResponse(frames(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT))(
            GET, connection.receive, connection.send
        )
    assert frames.closed


async def test_a_head_request_is_answered_without_a_stream() -> None:
    connection, frames = Connection(), Frames(1, "silence")
    await FrameResponse(frames(), life=60, heartbeat=60, streams=OwnerStreams(NO_LIMIT))(
        {**GET, "method": "HEAD"}, connection.receive, connection.send
    )
    assert connection.body == b""
    assert connection.is_complete


async def test_a_client_that_does_not_read_holds_up_the_end_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.api.streams.response._END_TIMEOUT", 0.01)
    frames = Frames(1, "silence")
    is_stuck = asyncio.Event()

    async def send(message: Message) -> None:
        if message.get("body") in {BLOCK, b""}:
            is_stuck.set()
            await asyncio.Event().wait()

    await FrameResponse(frames(), life=0.02, heartbeat=60, streams=OwnerStreams(NO_LIMIT))(
        GET, Connection().receive, send
    )
    assert is_stuck.is_set()
    assert frames.closed


def test_no_member_of_the_library_is_overridden_but_public_ones() -> None:
    base = {name for each in EventSourceResponse.__mro__ for name in vars(each)}
    mine = {name for name in vars(FrameResponse) if inspect.isfunction(vars(FrameResponse)[name])}
    assert mine & base == {"__init__", "__call__"}
    assert {"_frames", "_cuts", "_life", "_send", "_events"}.isdisjoint(vars(EventSourceResponse(Frames(0)())))
