"""A reader of a turn that keeps its cursor, whatever happens to the replicas that it reads from."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from random import Random

from tests.integration.people_fleet import Fleet
from tests.support.harness import Asked
from tests.support.stream_client import Client, encode
from turnstream.domain.degraded import degraded
from turnstream.domain.events import ActionRequired, Event, RoundStop
from turnstream.domain.log import marks_of
from turnstream.domain.turns import Turn
from turnstream.stream.directory import Directory
from turnstream.stream.reader import follow

KEPT = 3


@dataclass
class Watcher(Client):
    """A client that also keeps the rounds and the required actions. Round 0 has the messages to a turn that ended
    before its first round.
    """

    rounds: dict[int, RoundStop | None] = field(default_factory=lambda: {0: None})
    required: list[ActionRequired] = field(default_factory=list)

    def copy(self) -> "Watcher":
        blocks = [replace(piece) for piece in self.blocks]
        return replace(self, blocks=blocks, rounds=dict(self.rounds), required=list(self.required))

    def _apply(self, event: Event) -> None:
        super()._apply(event)
        if isinstance(event, ActionRequired):
            self.required.append(event)

    def assert_holds(self, turn: Turn) -> None:
        super().assert_holds(turn)
        marks = marks_of(turn)
        assert self.required == [mark for mark in marks if isinstance(mark, ActionRequired)]
        assert self.end == marks[-1]
        assert self.end.degraded == degraded(turn)


@dataclass
class Reader:
    random: Random
    fleet: Fleet
    asked: Asked
    watcher: Watcher = field(default_factory=Watcher)
    earlier: list[Watcher] = field(default_factory=list)

    async def read_to_the_end(self) -> None:
        """Reads from changing replicas, and disconnects at random moments."""
        while self.watcher.end is None:
            await self._read(self.watcher, patience=self.random.choice([0.005, 0.05, 0.2, 0.5]))
            if len(self.earlier) < KEPT:
                self.earlier.append(self.watcher.copy())

    async def _read(self, watcher: Watcher, patience: float | None = None) -> None:
        turn, directory = await self._load(), self.fleet.any(self.random).directory
        with suppress(TimeoutError):
            async with asyncio.timeout(patience), aclosing(self._tail(directory, turn, watcher)) as frames:
                async for portion in frames:
                    watcher.take(portion)

    def _tail(self, directory: Directory, turn: Turn, watcher: Watcher) -> AsyncGenerator[bytes, None]:
        return follow(directory, directory.view(turn), self._load, watcher.cursor, encode)

    async def _load(self) -> Turn:
        return await self.fleet.turn(self.asked)

    async def assert_holds(self, turn: Turn) -> None:
        """Checks that the assembled turn equals the stored turn, before and after a reconnect with an old cursor."""
        self.watcher.assert_holds(turn)
        for watcher in self.earlier:
            await self._read(watcher)
            watcher.assert_holds(turn)
            self.fleet.events["a reader was told to forget"] += len(watcher.resets)
