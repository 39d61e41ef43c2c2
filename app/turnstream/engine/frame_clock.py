"""The frame clock: under load, readers of provider streams wait for common ticks, which join their deltas."""

import asyncio
import time
from collections import deque
from typing import Literal

from turnstream.stream.wakeup import Wakeup
from turnstream.telemetry import FRAME_TICK_SECONDS, LOOP_LAG_SECONDS

Frames = Literal["by-load", "calm", "cheap"]

# The load of one core that starts the ticks, and the load that stops them. The second load is lower, because ticks
# reduce the load. Shorter ticks add latency and hardly reduce the load.
BUSY = 0.6
IDLE = 0.25
TICK = 0.05  # seconds
SAMPLE = 0.1  # seconds
# Each tick is divided into beats, and each stream waits for one beat: a delta waits only for the work of its own beat.
BEATS = 3


class FrameClock:
    """Measures the load of the event loop's thread. `tick` is the present tick in seconds, 0 under low load. The tick
    is always 0 with `frames=calm`, and never 0 with `frames=cheap`.
    """

    def __init__(self, frames: Frames = "by-load") -> None:
        self.tick = TICK if frames == "cheap" else 0.0
        self._follows_load = frames == "by-load"
        self._load = 0.0
        self._beats = deque(Wakeup() for _ in range(BEATS))
        self._scheduled = False

    async def wait_for_tick(self) -> None:
        """Returns at once under low load, else about a tick later, together with all reads of the same beat."""
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
        """Measures the load until it is cancelled."""
        wall, cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(SAMPLE)
            wall_now, cpu_now = time.perf_counter(), time.thread_time()
            late = max(0.0, wall_now - wall - SAMPLE)
            LOOP_LAG_SECONDS.set(late)
            # A late wake-up counts as load: the thread's CPU time excludes the time of other processes.
            self.observe(min(1.0, (cpu_now - cpu + late) / (wall_now - wall)))
            wall, cpu = wall_now, cpu_now

    def observe(self, busy: float) -> None:
        """Adds a sample of the load (0 to 1). Sets the tick by the smoothed load, so a single burst starts no ticks."""
        self._load = 0.7 * self._load + 0.3 * busy
        if self._follows_load:
            if self._load >= BUSY:
                self.tick = TICK
            elif self._load < IDLE:
                self.tick = 0.0
        FRAME_TICK_SECONDS.observe(self.tick)
