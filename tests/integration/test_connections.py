"""Attacks by a client without a token, which sends endless data, stays silent, or does not read."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import cast

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from turnstream.api.http import connection
from turnstream.api.http.connection import LONGEST_HEAD, OUTLET, Connection, Outlet

MEGABYTE = 1_000_000
STALL = 0.6  # longer than a busy machine delays a test's reader
MOST = 3

Wires = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Push(Response):
    """A response that writes its body through the outlet, until the outlet is closed."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.status_code, self.background = 200, None
        self.init_headers()
        self.begun, self.ended, self.writable = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with self.outlet.used(self.writable.set, self.ended.set):
            self.begun.set()
            await self.ended.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Site:
    """A server with an echo (`/`), a stream that never ends (`/stream`), and a stream that a test writes (`/push`)."""

    def __init__(self, listener: socket.socket) -> None:
        self.port = listener.getsockname()[1]
        self.gone = asyncio.Event()  # set when a client leaves in the middle of its request's body
        self.may_read = asyncio.Event()
        self.stream_ended = asyncio.Event()
        self.pushes: list[Push] = []
        routes = [Route("/", self._echo, methods=["GET", "POST"]), Route("/stream", self._stream)]
        routes.append(Route("/push", self._push, methods=["GET", "POST"]))
        app = Starlette(routes=routes)
        http = cast("type[asyncio.Protocol]", partial(Connection, stall=STALL, most=MOST))
        config = uvicorn.Config(app, http=http, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.may_read.set()

    async def _echo(self, request: Request) -> Response:
        await self.may_read.wait()
        try:
            return PlainTextResponse(str(len(await request.body())))
        except ClientDisconnect:
            self.gone.set()
            raise

    async def _stream(self, _request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 100_000
                    await asyncio.sleep(0)  # a closed connection never makes the writer wait
            finally:
                self.stream_ended.set()

        return StreamingResponse(pieces())

    async def _push(self, request: Request) -> Response:
        outlet = request.scope["extensions"][OUTLET]["outlet"]
        await request.body()
        await self.may_read.wait()
        self.pushes.append(push := Push(outlet))
        return push

    @asynccontextmanager
    async def wires(self) -> AsyncIterator[Wires]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def ask(self, data: bytes) -> bytes:
        """Sends the request, and reads the whole answer until the server closes the connection."""
        async with self.wires() as (reader, writer):
            writer.write(data)
            return await reader.read()


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.3)
    monkeypatch.setattr(connection, "BODY_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        site = Site(listener)
        task = asyncio.create_task(site.server.serve([listener]))
        await asyncio.sleep(0)
        yield site
        site.server.should_exit = True
        await task


POST = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


def _forever(beginning: bytes, piece: bytes) -> Iterator[bytes]:
    yield beginning
    while True:
        yield piece


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: ", b"x" * 60_000),
        (b"GET /", b"x" * 60_000),
        (b"GET / HTTP/1.1\r\nhost: a\r\n", b"x: y\r\n" * 10_000),
        (POST + b"1;", b"x" * 60_000),
        (POST + b"1\r\nx\r\n0\r\nx: ", b"x" * 60_000),
        (POST, b"1;" + b"x" * 60_000 + b"\r\nx\r\n"),
        (b"", b"\r\n" * 30_000),
    ],
    ids=["header", "path", "headers", "chunk extension", "trailer", "chunk extensions", "empty lines"],
)
async def test_endless_input_is_refused_soon(site: Site, beginning: bytes, piece: bytes) -> None:
    sent = 0
    async with site.wires() as (reader, writer):
        with suppress(ConnectionError):
            for data in _forever(beginning, piece):
                writer.write(data)
                await writer.drain()
                sent += len(data)
                if reader.at_eof() or sent > 20 * MEGABYTE:
                    break
        answer = b""
        with suppress(ConnectionError):
            answer = await reader.read()
    assert sent < 12 * MEGABYTE, "what the buffers of two sockets take, and not more"
    assert answer == b"" or b" 431 " in answer or b" 400 " in answer  # a client that still sends may lose the answer


async def test_a_head_that_is_too_long_is_answered_with_431(site: Site) -> None:
    whole = b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"x" * (LONGEST_HEAD + 100) + b"\r\n\r\n"
    for data in (whole, whole[:-4]):
        answer = await site.ask(data)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b"connection: close" in answer


async def test_long_but_valid_input_is_accepted(site: Site) -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx: " + b"x" * 60_000
    assert (await site.ask(head + b"\r\ncontent-length: 1000000\r\n\r\n" + b"b" * MEGABYTE)).endswith(b"1000000")
    chunks = b"1\r\nx\r\n" * 200_000 + b"0\r\n\r\n"
    assert (await site.ask(head + b"\r\ntransfer-encoding: chunked\r\n\r\n" + chunks)).endswith(b"200000")


async def test_requests_that_come_together_are_all_answered(site: Site) -> None:
    one = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc"
    answer = await site.ask(one * 3 + one.replace(b"host", b"connection: close\r\nhost"))
    assert answer.count(b"HTTP/1.1 200 ") == 4


def _nothing(_writer: asyncio.StreamWriter) -> None: ...


async def _drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET / HTTP/1.1\r\n")
    with suppress(ConnectionError):
        while True:
            writer.write(b"x: y\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "data",
    [b"", b"GE", b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc"],
)
async def test_silence_is_not_waited_for(site: Site, data: bytes) -> None:
    async with site.wires() as (reader, writer):
        writer.write(data)
        async with asyncio.timeout(60):
            await reader.read()


async def test_a_body_that_stops_disconnects_its_request(site: Site) -> None:
    await site.ask(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc")
    await site.gone.wait()


async def test_headers_that_come_one_by_one_have_a_time_in_all(site: Site) -> None:
    async with site.wires() as (reader, writer):
        dripping = asyncio.create_task(_drip(writer))
        async with asyncio.timeout(60):
            with suppress(ConnectionError):
                await reader.read()
        dripping.cancel()


async def test_an_empty_line_after_an_answer_keeps_no_connection(site: Site) -> None:
    async with site.wires() as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n0")
        writer.write(b"\r\n")
        async with asyncio.timeout(60):
            await reader.read()


async def test_a_body_that_the_handler_does_not_take_is_waited_for(site: Site) -> None:
    site.may_read.clear()
    async with site.wires() as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 3000000\r\n\r\n")
        sending = asyncio.create_task(_send(writer, b"b" * 3 * MEGABYTE))
        await asyncio.sleep(1)  # three times as long as the server waits for a piece of a body
        site.may_read.set()
        await sending
        assert (await reader.read()).endswith(b"3000000")


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def test_a_reader_that_does_not_read_is_disconnected(site: Site) -> None:
    async with site.wires() as (_, writer):
        writer.write(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")
        async with asyncio.timeout(60):
            await site.stream_ended.wait()


async def test_a_reader_that_is_only_slow_stays(site: Site) -> None:
    async with site.wires() as (reader, writer):
        writer.write(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")
        until: Callable[[], float] = asyncio.get_running_loop().time
        end = until() + 4 * STALL
        while until() < end:
            assert await reader.read(500_000)
            await asyncio.sleep(STALL / 10)
        assert not site.stream_ended.is_set()


async def test_the_longest_idle_connection_makes_room_for_a_new_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 60)
    async with site.wires() as (busy, ask), site.wires() as (first, _), site.wires() as (second, _):
        ask.write(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")
        await busy.read(10)
        async with site.wires() as (_, writer):
            async with asyncio.timeout(60):
                assert await first.read() == b""
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            await writer.drain()
        assert not second.at_eof()
        assert await busy.read(10)


PUSH = b"GET /push HTTP/1.1\r\nhost: a\r\n\r\n"


async def _pushed(site: Site, number: int = 0) -> Push:
    while len(site.pushes) <= number:  # noqa: ASYNC110, the server has no event for it
        await asyncio.sleep(0.01)
    await site.pushes[number].begun.wait()
    return site.pushes[number]


async def test_an_outlet_writes_past_the_task_and_says_when_it_can(site: Site) -> None:
    async with site.wires() as (reader, writer):
        writer.write(PUSH)
        push, written = await _pushed(site), 0
        while push.outlet.is_writable:
            push.outlet.write(b"x" * 50_000)
            written += 1
        with pytest.raises(AssertionError, match="full connection"):
            push.outlet.write(b"x")
        while not push.writable.is_set():
            await reader.read(50_000)
        push.outlet.write(b"the last")
        assert not push.ended.is_set()
        push.ended.set()
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert b"8\r\nthe last\r\n0\r\n\r\nHTTP/1.1 200 OK" in await reader.read()
    assert written > 1


async def test_an_outlet_ends_with_its_client(site: Site) -> None:
    async with site.wires() as (_, writer):
        writer.write(PUSH)
        push = await _pushed(site)
    await push.ended.wait()
    push.outlet.write(b"nobody reads this")


@pytest.mark.parametrize("header", [b"", b"connection: close\r\n"], ids=["kept", "closed"])
async def test_a_client_that_leaves_the_rest_of_an_answer_unread_is_disconnected(site: Site, header: bytes) -> None:
    connections = site.server.server_state.connections
    async with site.wires() as (_, writer):
        cast("asyncio.ReadTransport", writer.transport).pause_reading()
        writer.write(PUSH.replace(b"\r\n\r\n", b"\r\n" + header + b"\r\n"))
        push, (pushing,) = await _pushed(site), connections
        while not pushing.transport.get_write_buffer_size():
            push.outlet.write(b"x" * 10_000)
        push.ended.set()
        async with asyncio.timeout(60):
            while connections:  # noqa: ASYNC110, the server has no event for it
                await asyncio.sleep(0.01)


async def test_an_idle_connection_that_cannot_be_closed_does_not_keep_the_others_open(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 60)
    async with site.wires() as (_, writer):
        cast("asyncio.ReadTransport", writer.transport).pause_reading()
        writer.write(PUSH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        push, (pushing,) = await _pushed(site), site.server.server_state.connections
        assert isinstance(pushing, Connection)
        pushing._stall = 60
        while not pushing.transport.get_write_buffer_size():
            push.outlet.write(b"x" * 10_000)
        push.ended.set()
        while not pushing.is_idle:  # noqa: ASYNC110, the server has no event for it
            await asyncio.sleep(0.01)
        async with site.wires() as (first, _), site.wires(), site.wires(), asyncio.timeout(30):
            assert await first.read() == b""
        pushing.transport.abort()


@pytest.mark.parametrize("last", [b"b" * 100_000, b"b" * 100_000 + PUSH], ids=["body", "request"])
async def test_an_outlet_ends_with_its_client_also_after_data_that_paused_the_connection(
    site: Site, last: bytes
) -> None:
    async with site.wires() as (_, writer):
        writer.write(b"POST /push HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n")
        while not site.server.server_state.tasks:  # noqa: ASYNC110, the server has no event for it
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # the handler waits for the body, which then arrives in one piece
        writer.write(last)
        push = await _pushed(site)
    await push.ended.wait()


async def test_a_disconnect_reaches_the_request_that_is_being_answered_not_a_pipelined_one(site: Site) -> None:
    async with site.wires() as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" + PUSH + b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await reader.readuntil(b"transfer-encoding: chunked\r\n\r\n")
        push, (pushing,) = await _pushed(site), site.server.server_state.connections
        assert isinstance(pushing, Connection)
        answered = pushing._running
        assert answered is not pushing.cycle
    await push.ended.wait()
    assert answered.disconnected
    assert not answered.response_complete


async def test_an_outlet_ends_at_once_for_a_client_that_left_before_the_response(site: Site) -> None:
    site.may_read.clear()
    async with site.wires() as (_, writer):
        writer.write(PUSH)
        while not site.server.server_state.tasks:  # noqa: ASYNC110, the server has no event for it
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
    while site.server.server_state.connections:  # noqa: ASYNC110, the server has no event for it
        await asyncio.sleep(0.01)
    site.may_read.set()
    push = await _pushed(site)
    assert push.ended.is_set()


async def test_an_outlet_ends_when_the_server_shuts_down_also_where_it_begins_after_that(site: Site) -> None:
    async with site.wires() as (reader, writer), site.wires() as (late_reader, late_writer):
        writer.write(PUSH)
        await _pushed(site)
        site.may_read.clear()
        late_writer.write(PUSH)
        while len(site.server.server_state.tasks) < 2:  # noqa: ASYNC110, the server has no event for it
            await asyncio.sleep(0.01)
        for each in list(site.server.server_state.connections):
            each.shutdown()
        assert (await reader.read()).endswith(b"\r\n0\r\n\r\n")
        site.may_read.set()
        assert (await late_reader.read()).endswith(b"\r\n0\r\n\r\n")
