"""One of the processes of `serve`."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from turnstream.extensions.workers.neighbours import UnixNeighbours


class WorkerProcess:
    """`place` contains the number of the process, and the folder of all sockets."""

    def __init__(self, place: str) -> None:
        number, _, folder = place.partition(":")
        self.number = int(number)
        self._folder = Path(folder)

    def neighbours(self, replica: UUID) -> UnixNeighbours:
        return UnixNeighbours(self._folder, self.number, replica)

    def obey(self, drain: Callable[[], None], stop: Callable[[], None]) -> None:
        loop, order = asyncio.get_running_loop(), sys.stdin.fileno()

        def read() -> None:
            if os.read(order, 1):
                stop()
            else:
                loop.remove_reader(order)
                drain()

        loop.add_reader(order, read)
