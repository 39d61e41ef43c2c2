"""Sweeps of rows that nobody needs any more, or that are too old.

Each has a task of its own: it may take long, and no lease must wait for it. One replica does it at a time, in small
steps, and rests after each for longer than it took.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from app.storage.database import LONG, retry_while_unavailable
from app.storage.retention import Sweeps

log = structlog.get_logger(__name__)

HOURS = 3600.0
UNUSED_UPLOADS_KEPT = 24 * HOURS  # to be sent with a message

# How often a replica looks whether a sweep is due, in parts of its period.
_LOOKS = 12
_LEASE = 2 * LONG  # seconds; a step is shorter
# The rest after a step, in times of its duration and in seconds.
_REST = 4.0
_SHORTEST_REST = 0.05


@dataclass(frozen=True, slots=True)
class Sweep:
    """`step` returns how many rows it has removed, or None when there is nothing left to do for `period` seconds."""

    name: str
    period: float
    step: Callable[[], Awaitable[int | None]]

    async def run(self, sweeps: Sweeps) -> None:
        """Sweeps for ever, where no other replica does."""
        while True:
            await asyncio.sleep(self.period / _LOOKS * random.uniform(0.5, 1.0))  # noqa: S311, replicas look in turn
            await self.look(sweeps)

    async def look(self, sweeps: Sweeps) -> None:
        """Does the sweep if it is due."""
        if not await retry_while_unavailable(lambda: sweeps.claim(self.name, _LEASE)):
            return
        removed, began = 0, time.monotonic()
        while (count := await retry_while_unavailable(self.step)) is not None:
            removed += count
            await asyncio.sleep(max(_SHORTEST_REST, _REST * (time.monotonic() - began)))
            await retry_while_unavailable(lambda: sweeps.postpone(self.name, _LEASE))
            began = time.monotonic()
        await retry_while_unavailable(lambda: sweeps.postpone(self.name, self.period))
        if removed:
            log.info("sweep.removed", sweep=self.name, rows=removed)


def at_once(step: Callable[[], Awaitable[int]]) -> Callable[[], Awaitable[int | None]]:
    """A sweep in one step."""
    left = False

    async def once() -> int | None:
        nonlocal left
        left = not left
        return await step() if left else None

    return once


async def sweep_here(period: float, step: Callable[[], Awaitable[int]]) -> None:
    """Sweeps for ever what belongs to the machine of this process: what other replicas sweep is not the same."""
    while True:
        await asyncio.sleep(period * random.uniform(0.5, 1.0))  # noqa: S311, processes of one machine sweep in turn
        await retry_while_unavailable(step)
