"""The frame clock: under pressure, readers of provider streams breathe together, so that deltas coalesce sooner."""

import asyncio
import time
from collections import deque

from app.stream.wakeup import Wakeup
from app.telemetry import LOOP_LAG_SECONDS

# Below `CALM` of one core nothing waits; at `FULL` everything waits for the longest tick. Seconds.
CALM = 0.35
FULL = 0.85
LONGEST_TICK = 0.06
SAMPLE = 0.1
# A tick has so many beats. In each a part of the streams is read and sent on, so that none waits for all others too.
BEATS = 3


class FrameClock:
    """Watches how busy the event loop's thread is. `tick` is the present frame time in seconds; 0 when calm."""

    def __init__(self) -> None:
        self.tick = 0.0
        self._bells = deque(Wakeup() for _ in range(BEATS))
        self._wound = False

    async def wait_for_tick(self) -> None:
        """Returns at once when the process is calm, else a tick later, with all who came since the same beat."""
        if self.tick == 0.0:
            return
        if not self._wound:
            self._wind()
        await self._bells[-1].wait()

    def _wind(self) -> None:
        self._wound = True
        asyncio.get_running_loop().call_later(self.tick / BEATS, self._strike)

    def _strike(self) -> None:
        self._bells.rotate(-1)
        self._bells[-1].notify()
        self._wound = False
        if any(bell.has_waiters for bell in self._bells):
            self._wind()

    async def watch(self) -> None:
        """Measures for ever; the composition root owns the task."""
        wall, cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(SAMPLE)
            wall_now, cpu_now = time.perf_counter(), time.thread_time()
            LOOP_LAG_SECONDS.set(max(0.0, wall_now - wall - SAMPLE))
            self.observe((cpu_now - cpu) / (wall_now - wall))
            wall, cpu = wall_now, cpu_now

    def observe(self, busy: float) -> None:
        """Sets the tick by how busy (0 to 1) the last sample was, gliding so that it does not swing."""
        wanted = LONGEST_TICK * min(1.0, max(0.0, (busy - CALM) / (FULL - CALM)))
        glided = 0.7 * self.tick + 0.3 * wanted
        self.tick = glided if glided > 0.002 else 0.0
