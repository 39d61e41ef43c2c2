"""Requests between the processes of `serve --workers`: which senders are trusted, and what a broken process costs the
others.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from turnstream.api.neighbours import is_from_neighbour
from turnstream.extensions.workers import neighbours as module
from turnstream.extensions.workers.neighbours import FromNeighbours, Neighbour, UnixNeighbours
from turnstream.kit.ids import new_id

Answer = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
def neighbours() -> Iterator[UnixNeighbours]:
    # the path of a socket has a length limit, and `tmp_path` contains the name of the test
    with TemporaryDirectory() as folder:
        yield UnixNeighbours(Path(folder), 1, new_id())


@asynccontextmanager
async def neighbour(neighbours: UnixNeighbours, answer: Answer) -> AsyncIterator[Neighbour]:
    """Simulates another process: its socket calls `answer` with the head of each request."""
    connections: set[asyncio.Task[None] | None] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        await answer(await reader.readuntil(b"\r\n\r\n"), reader, writer)
        writer.close()
        await writer.wait_closed()

    path = neighbours.own.socket.with_name(f"2.{new_id()}")
    async with await asyncio.start_unix_server(connected, path):
        yield neighbours.living()[0]
        await asyncio.gather(*filter(None, connections))
    path.unlink()


def request_with(*headers: tuple[bytes, bytes]) -> Request:
    scope = {"type": "http", "method": "GET", "raw_path": b"/stream", "query_string": b"", "headers": list(headers)}
    return Request({**scope, "client": ("192.0.2.1", 4711), "state": {}})


async def test_a_request_of_the_network_names_no_client_though_its_connection_is_gone(tmp_path: Path) -> None:
    """If a connection was reset, or came through a Unix socket, the server knows no client address."""
    seen: list[Request] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(Request(scope))

    listening = FromNeighbours(app, tmp_path / "socket")
    claimed = [(b"x-turnstream-client", b"4711 127.0.0.1")]
    for server in (("127.0.0.1", 8000), (str(tmp_path / "socket"), None)):
        scope = {"type": "http", "client": None, "server": server, "headers": claimed}
        await listening(scope, None, None)  # type: ignore[arg-type]
    assert [(each.client and each.client.host, is_from_neighbour(each)) for each in seen] == [
        (None, False),
        ("127.0.0.1", True),
    ]


async def test_headers_of_the_single_connection_are_not_passed_on(neighbours: UnixNeighbours) -> None:
    heads: list[bytes] = []

    async def answer(head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(head.lower())
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    request = request_with(
        (b"host", b"example.com"),
        (b"content-length", b"7"),
        (b"expect", b"100-continue"),
        (b"x-turnstream-client", b"1 127.0.0.1"),
        (b"last-event-id", b"1-2-3"),
    )
    async with neighbour(neighbours, answer) as other:
        passed_on = await neighbours.pass_on(request, other.replica)
        assert passed_on is not None
        await sent(passed_on)
    lines = heads[0].decode().splitlines()
    assert {"host: example.com", "last-event-id: 1-2-3", "x-turnstream-client: 4711 192.0.2.1"} < {*lines}
    names = [line.partition(":")[0] for line in lines]
    assert {"content-length", "expect", "accept-encoding", "user-agent"}.isdisjoint(names)
    assert names.count("x-turnstream-client") == 1


async def test_a_neighbour_that_takes_the_request_and_does_not_answer_is_not_waited_for(
    neighbours: UnixNeighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The neighbour simulates a frozen process, for which the kernel still accepts connections."""
    monkeypatch.setattr(module, "_HEAD_PATIENCE", 0.1)
    asked = asyncio.Event()

    async def answer(_head: bytes, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()  # waits until the client closes the connection

    async with neighbour(neighbours, answer) as other:
        assert await neighbours.pass_on(request_with(), other.replica) is None
        assert asked.is_set()


@pytest.mark.parametrize("rest", [b"0\r\n\r\n", b"8\r\nhal"])
async def test_a_stream_is_whole_only_where_that_of_its_neighbour_is(neighbours: UnixNeighbours, rest: bytes) -> None:
    """The SDKs of OpenAI and of Vercel treat an answer as complete when its body ends properly, so a broken body must
    stay broken.
    """

    async def answer(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + b"6\r\ndata: \r\n" + rest)
        await writer.drain()

    async with neighbour(neighbours, answer) as other:
        passed_on = await neighbours.pass_on(request_with(), other.replica)
        assert passed_on is not None
        messages = await sent(passed_on)
    assert messages[0]["status"] == 200
    assert b"".join(each.get("body", b"") for each in messages[1:]) in {b"data: ", b"data: hal"}
    assert messages[-1]["more_body"] is (rest == b"8\r\nhal")


async def test_only_processes_with_a_valid_answer_are_counted(neighbours: UnixNeighbours) -> None:
    async def fails(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 9\r\n\r\nThe cause")

    async def answers(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nready")

    async with neighbour(neighbours, fails):
        assert await neighbours.ask_all("/metrics") == {}
    async with neighbour(neighbours, answers):
        assert await neighbours.ask_all("/metrics") == {2: "ready"}


async def sent(response: Any) -> list[Message]:
    messages: list[Message] = []

    async def receive() -> Message:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    async def send(message: Message) -> None:
        messages.append(message)

    await response({"type": "http", "asgi": {}}, receive, send)
    return messages
