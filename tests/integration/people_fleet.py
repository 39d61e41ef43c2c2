"""Replicas that crash, drain and are wrongly declared dead while other replicas continue."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.integration.people_tools import Workshop, toolset_of
from tests.support.harness import POLICY, Asked, Harness, Replica
from turnstream.domain.turns import Turn
from turnstream.llm.provider import Provider
from turnstream.storage.chats.actions import Actions
from turnstream.storage.database import Database, Row, Statement, Transaction

SIZE = 2
# Notifications may get lost in these tests, so every replica polls often. A drained replica returns its turns almost at
# once.
IMPATIENT = replace(POLICY, poll_interval=0.05, grace_period=0.005)


class Mortal(Database):
    """The database of a replica. After the death of the replica, no further statement takes effect."""

    def __init__(self, database: Database) -> None:
        super().__init__(database._pool, database._timeout)
        self._dead = False

    def die(self) -> None:
        self._dead = True

    def live(self) -> None:
        self._dead = False

    async def rows(self, statement: Statement, **values: Any) -> Sequence[Row]:
        self._check()
        return await super().rows(statement, **values)

    @asynccontextmanager
    async def transaction(self, *, snapshot: bool = False) -> AsyncIterator[Transaction]:
        self._check()
        async with super().transaction(snapshot=snapshot) as connection:
            yield connection
            self._check()

    def _check(self) -> None:
        if self._dead:
            raise RuntimeError("killed")


@dataclass
class Fleet:
    harness: Harness
    provider: Provider
    workshop: Workshop
    events: Counter[str]
    stack: AsyncExitStack
    replicas: list[Replica] = field(default_factory=list)
    spared: bool = False

    async def gather(self) -> None:
        while len(self.replicas) < SIZE:
            self.replicas.append(await self.add())

    async def add(self) -> Replica:
        toolset, database = toolset_of(self.workshop), Mortal(self.harness.database)
        harness = Harness(self.harness.url, database)
        replica = await self.stack.enter_async_context(
            harness.replica(self.provider, toolset=toolset, policy=IMPATIENT, listens=True)
        )
        self.stack.callback(database.live)
        return replica

    def any(self, random: Random) -> Replica:
        return random.choice(self.replicas)

    def wake(self) -> None:
        for replica in self.replicas:
            replica.worker.wake()

    async def turn(self, asked: Asked) -> Turn:
        return await self.harness.turn(asked)

    async def suffer(self, random: Random) -> None:
        """Injects one fault after another, until there are enough."""
        while not self.spared:
            await asyncio.sleep(random.uniform(0.02, 0.3))
            match random.choice(["crash", "crash", "leave", "doubt", "expire", "expire"]):
                case "crash":
                    await self._lose(random, crash=True)
                case "leave":
                    await self._lose(random, crash=False)
                case "doubt":
                    await self._doubt(random)
                case _:
                    await self.expire(random)

    async def _lose(self, random: Random, *, crash: bool) -> None:
        """Crashes or drains a replica, preferably while tools run."""
        for _ in range(20):
            if self.workshop.inside():
                break
            await asyncio.sleep(0.001)
        lost = self.any(random)
        self.replicas.remove(lost)
        if crash:
            assert isinstance(lost.database, Mortal)
            lost.database.die()
        await (lost.kill() if crash else lost.stop())
        self.events["a replica crashed" if crash else "a replica left"] += 1
        await self.gather()
        await self.replicas[-1].queue.take_over([lost.queue.replica])
        self.wake()

    async def _doubt(self, random: Random) -> None:
        """Makes one replica declare the other replica dead by mistake."""
        taking, losing = random.sample(self.replicas, 2)
        taken = await taking.queue.take_over([losing.queue.replica])
        self.events["a turn was taken from who still ran it"] += len(taken)
        taking.worker.wake()
        await losing.queue.renew_lease(60)

    async def expire(self, random: Random) -> None:
        """Expires the asks, as every replica does."""
        if turns := await Actions(self.harness.database).expire():
            self.events["a turn went on without an answer"] += len(turns)
            self.any(random).worker.wake()
