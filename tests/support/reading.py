"""A reader that reconnects with its cursor until the end of its turn, and checks every event."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from tests.support.http_client import Client, Json, Parser
from turnstream.domain.cursor import START, Cursor
from turnstream_client.assembler import Assembler

_AGAIN = frozenset({502, 503, 504})


class Reader:
    """Reads a turn. `client` reaches any replica. With `cut_after`, each connection is cut after so many events, and
    the reader reconnects.
    """

    def __init__(self, client: Client, path: str, cut_after: int | None = None, name: str = "") -> None:
        self.name = name
        self.turn = Assembler()
        self.connections = 0
        self.heartbeats = 0
        self.seen: list[str] = []
        self._client = client
        self._path = path
        self._cut_after = cut_after
        self._cursor = START
        self._news = asyncio.Condition()

    async def until(self, condition: Callable[["Reader"], bool]) -> None:
        async with self._news:
            await self._news.wait_for(lambda: condition(self))

    async def follow(self) -> None:
        """Reads to the end of the turn."""
        while self.turn.end is None:
            try:
                await self._connect()
            except httpx2.TransportError:
                await asyncio.sleep(0.05)  # the pause of a client before a reconnect

    async def _connect(self) -> None:
        headers = {"Last-Event-ID": str(self._cursor)} if self._cursor != START else {}
        async with self._client.stream("GET", self._path, headers=headers) as response:
            if response.status_code in _AGAIN:
                await asyncio.sleep(0.05)
                return
            assert response.status_code == 200, await response.aread()
            self.connections += 1
            await self._read(response)

    async def _read(self, response: httpx2.Response) -> None:
        parser, count = Parser(), 0
        async for chunk in response.aiter_bytes():
            self.heartbeats += chunk.count(b": ping")
            for event in parser.feed(chunk):
                self._take(event.id, event.name, event.data)
                count += event.id is not None
                if count == self._cut_after:
                    break
            async with self._news:
                self._news.notify_all()
            if count == self._cut_after:
                return

    def _take(self, id: str | None, name: str, data: Mapping[str, Any]) -> None:
        if id is not None:
            cursor = Cursor.parse(id)
            assert cursor > self._cursor, f"{name} {id} came after {self._cursor}"
            self._cursor = cursor
        self.seen.append(name)
        self.turn.apply(name, data)

    def text(self) -> str:
        return "".join(block["text"] for block in self.turn.blocks if block["type"] == "text")

    def check_whole(self, turn: Json) -> None:
        """Checks that the assembled turn equals the stored turn."""
        stored = Assembler.of(turn)
        assert self.turn.blocks == stored.blocks
        assert (self.turn.end, self.turn.stop_reason, self.turn.usage) == (stored.end, stored.stop_reason, stored.usage)
        for number, round in stored.rounds.items():
            told = self.turn.rounds[number]
            assert (told["stop_reason"], told["usage"]) == (round["stop_reason"], round["usage"])
