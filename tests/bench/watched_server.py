"""`turnstream serve` with a watch over the event loop, which takes 500 samples a second and logs every hold.

At its start the server holds the loop several times for `ON_PURPOSE` milliseconds of processor time. The log must show
these holds.
"""

import asyncio
from time import thread_time
from typing import Self

from turnstream.cli import commands
from turnstream.extensions.watches import loop_watch

ON_PURPOSE = 50.0


class ProvenWatch(loop_watch.LoopWatch):
    def __enter__(self) -> Self:
        super().__enter__()
        for number in range(1, 6):  # several times, because the watch may start late
            asyncio.get_running_loop().call_later(number / 100, _hold)
        return self


def _hold() -> None:
    until = thread_time() + ON_PURPOSE / 1000
    while thread_time() < until:
        pass


if __name__ == "__main__":
    loop_watch.PAUSE, loop_watch.LIMIT, loop_watch._LOGGED = 0.002, 0.01, 0.0
    loop_watch.LoopWatch = ProvenWatch  # type: ignore[misc]
    commands(["serve"])
