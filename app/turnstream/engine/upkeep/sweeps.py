"""Sweeps delete rows that are too old or no longer needed. Each sweep has its own task, because a sweep may take long
and the lease must not wait. One replica sweeps at a time, in small steps, and each step is followed by a longer rest.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from turnstream.domain.errors import StatementTooLong, StorageUnavailable
from turnstream.storage.database import LONG
from turnstream.storage.retention import Sweeps

log = structlog.get_logger(__name__)

HOURS = 3600.0

# How often per period a replica checks whether a sweep is due.
_LOOKS = 12
_LEASE = 2 * LONG  # seconds; a step is shorter
# The rest after a step: a multiple of the step's duration, and a minimum in seconds.
_REST = 4.0
_SHORTEST_REST = 0.05


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that is due every `period` seconds. `steps` yields the number of removed rows after each step."""

    name: str
    period: float
    steps: Callable[[], AsyncGenerator[int, None]]

    async def run(self, sweeps: Sweeps) -> None:
        """Sweeps when the sweep is due, unless another replica sweeps. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(self.period / _LOOKS * random.uniform(0.5, 1.0))  # noqa: S311, replicas look in turn
            try:
                await self.look(sweeps)
            except StorageUnavailable as error:  # the sweep is due again when its lease has expired
                log.warning("sweep.waits", sweep=self.name, error=str(error))

    async def look(self, sweeps: Sweeps) -> None:
        """Sweeps if due. A step over its time limit would fail again at once, so the sweep waits for a period."""
        if not await sweeps.claim(self.name, _LEASE):
            return
        removed, began = 0, time.monotonic()
        try:
            async with aclosing(self.steps()) as steps:
                async for count in steps:
                    removed += count
                    await asyncio.sleep(max(_SHORTEST_REST, _REST * (time.monotonic() - began)))
                    await sweeps.postpone(self.name, _LEASE)
                    began = time.monotonic()
        except StatementTooLong as error:
            log.error("sweep.too_long", sweep=self.name, error=str(error), seconds=self.period)
        await sweeps.postpone(self.name, self.period)
        if removed:
            log.info("sweep.removed", sweep=self.name, rows=removed)
