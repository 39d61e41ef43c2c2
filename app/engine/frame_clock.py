"""The frame clock: under load, the readers of provider streams wait for common ticks, so that deltas are joined."""

import asyncio
import time
from collections import deque

from app.stream.wakeup import Wakeup
from app.telemetry import LOOP_LAG_SECONDS

# The load of one core below which no stream waits, and above which streams wait for the longest tick.
CALM = 0.35
FULL = 0.85
LONGEST_TICK = 0.06  # seconds
SAMPLE = 0.1  # seconds
# A tick is divided into beats, each for a part of the streams: a delta does not wait for the work of all other streams.
BEATS = 3


class FrameClock:
    """Measures the load of the event loop's thread. `tick` is the present tick in seconds, 0 under low load."""

    def __init__(self) -> None:
        self.tick = 0.0
        self._beats = deque(Wakeup() for _ in range(BEATS))
        self._scheduled = False

    async def wait_for_tick(self) -> None:
        """Returns at once under low load, else about a tick later, together with all that came since the same beat."""
        if self.tick == 0.0:
            return
        if not self._scheduled:
            self._schedule()
        await self._beats[-1].wait()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_later(self.tick / BEATS, self._end_beat)

    def _end_beat(self) -> None:
        self._beats.rotate(-1)
        self._beats[-1].notify()
        self._scheduled = False
        if any(beat.has_waiters for beat in self._beats):
            self._schedule()

    async def watch(self) -> None:
        """Measures for ever."""
        wall, cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(SAMPLE)
            wall_now, cpu_now = time.perf_counter(), time.thread_time()
            LOOP_LAG_SECONDS.set(max(0.0, wall_now - wall - SAMPLE))
            self.observe((cpu_now - cpu) / (wall_now - wall))
            wall, cpu = wall_now, cpu_now

    def observe(self, busy: float) -> None:
        """Sets the tick by the load (0 to 1) of the last sample. It is smoothed, so that the tick does not swing."""
        target = LONGEST_TICK * min(1.0, max(0.0, (busy - CALM) / (FULL - CALM)))
        smoothed = 0.7 * self.tick + 0.3 * target
        self.tick = smoothed if smoothed > 0.002 else 0.0
