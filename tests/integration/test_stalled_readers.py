"""Two hundred readers of one turn that have stopped reading: they cost little memory, and slow no other reader."""

import asyncio
import gc
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from tests.support.http_client import Client, Parser
from tests.support.http_server import Server, serving
from turnstream.domain.log import LONGEST_DELTA
from turnstream.llm.provider import Part
from turnstream.scripted import Pause, Step, message_of, text
from turnstream.stream.reader import PORTION
from turnstream.telemetry import STREAMS_OPEN

STALLED = 200
MEGABYTE = 1_000_000
# The model repeats this one object, so that the text of the turn costs no memory and only readers do.
PIECE = "All the tides of the world, one after the other. " * 1200
# BEFORE is the number of characters before the first measurement of memory: more than the kernel buffers for a reader.
# AFTER is the number before the second measurement.
BEFORE, AFTER = 8 * MEGABYTE, 20 * MEGABYTE
# The memory of a stalled reader: a waiting portion, and a portion in the transport's buffer, whatever the length of the
# turn. Readers share portions only while all have the same cursor, which depends on the load of the machine. Measured:
# 127 KB with shared portions, 225 KB without.
MOST_OF_A_READER = 2 * (PORTION + LONGEST_DELTA)
# The growth between two measurements that readers do not cause.
SLACK = 4 * MEGABYTE


@dataclass
class Speech:
    """A long answer with two pauses. `spoken` is how much of the answer the model has sent at each pause."""

    pauses: tuple[Pause, Pause] = field(default_factory=lambda: (Pause(), Pause()))

    def reply(self) -> Iterator[Step]:
        start, opened, *_, closed, end = message_of(text(PIECE))
        yield from (start, opened)
        for spoken, pause in zip((BEFORE, AFTER - BEFORE), self.pauses, strict=True):
            for _ in range(spoken // len(PIECE)):
                yield from self._piece()
            yield pause
        yield from (closed, end)

    @staticmethod
    def _piece() -> Sequence[Sequence[Part]]:
        return list(message_of(text(PIECE)))[2:3]


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url, stream_life=3600, owner_streams=0) as server:
        yield server


@asynccontextmanager
async def stalled_readers(url: str, path: str, count: int) -> AsyncIterator[list[socket.socket]]:
    """Opens clients that request the stream, receive its beginning, and never read again."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        readers = [stack.enter_context(socket.socket()) for _ in range(count)]
        for reader in readers:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.setblocking(False)
            await loop.sock_connect(reader, (parts.hostname, parts.port))
            await loop.sock_sendall(reader, f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
            assert (await loop.sock_recv(reader, 15)).startswith(b"HTTP/1.1 200")
        yield readers


class Healthy:
    """A client that reads all the time."""

    def __init__(self) -> None:
        self.received = 0
        self.last = ""
        self.progress = asyncio.Condition()

    async def read(self, client: Client, path: str) -> None:
        parser = Parser()
        async with client.stream("GET", path) as response:
            async for chunk in response.aiter_bytes():
                for event in parser.feed(chunk):
                    self.last = event.name
                    if event.name == "block_delta":
                        assert event.data["offset"] == self.received
                        self.received += len(event.data["text"])
                async with self.progress:
                    self.progress.notify_all()

    async def has_received(self, characters: int) -> None:
        async with self.progress:
            await self.progress.wait_for(lambda: self.received >= characters)


def _memory() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.timeout(180)
async def test_stalled_readers_cost_little_memory_and_slow_nobody(server: Server) -> None:
    speech = Speech()
    beginning = Pause()
    model = server.scripts.model([beginning, *speech.reply()])
    tracemalloc.start()
    try:
        async with Client(server.url) as client:
            new = await client.say(await client.chat(), model=model)
            await beginning.reached.wait()
            healthy = Healthy()
            reading = asyncio.create_task(healthy.read(client, new.stream_url))
            alone = _memory()
            async with stalled_readers(server.url, new.stream_url, STALLED):
                assert STREAMS_OPEN._value.get() >= STALLED
                beginning.go.set()
                said = BEFORE // len(PIECE) * len(PIECE)
                await asyncio.gather(speech.pauses[0].reached.wait(), healthy.has_received(said))
                # On a busy machine the kernel's buffers fill later, and a reader reaches its maximum only after that.
                while server.stalled_connections < STALLED:  # noqa: ASYNC110, nothing is notified of this
                    await asyncio.sleep(0.01)
                first = _memory()
                speech.pauses[0].go.set()
                said += (AFTER - BEFORE) // len(PIECE) * len(PIECE)
                await asyncio.gather(speech.pauses[1].reached.wait(), healthy.has_received(said))
                second = _memory()
                speech.pauses[1].go.set()
                await reading
            turn = await client.json("GET", new.url)
    finally:
        tracemalloc.stop()
    assert max(first, second) - alone < STALLED * MOST_OF_A_READER + SLACK
    # Fewer readers may share their portions at the second measurement. But the server keeps no text from the time
    # between, not even once for all readers.
    assert second - first < AFTER - BEFORE
    assert healthy.received == said
    assert healthy.last == "turn_complete"
    assert (turn["status"], len(turn["blocks"][0]["text"])) == ("complete", said)
