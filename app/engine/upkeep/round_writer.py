"""The round writer: stores the rounds that have begun in all running turns, in one statement per tick."""

import asyncio
from contextlib import suppress
from time import perf_counter

from app.domain.errors import StorageUnavailable
from app.storage.database import Database
from app.storage.runs.record import begin_rounds
from app.stream.directory import Directory
from app.telemetry import PERSIST_SECONDS


class RoundWriter:
    """`interval` is the tick in seconds. No turn waits for it: the first write of a turn about a round brings the row
    of the round along. A kill before either takes the round and the text of its open block with it.
    """

    def __init__(self, database: Database, directory: Directory, interval: float) -> None:
        self._database = database
        self._directory = directory
        self._interval = interval

    async def run(self) -> None:
        """Writes for ever."""
        while True:
            await asyncio.sleep(self._interval)
            with suppress(StorageUnavailable):  # the next tick writes it
                await self.flush()

    async def flush(self) -> None:
        """Does one tick."""
        begun = {view: round for view in self._directory.here() for round in view.begun}
        if not begun:
            return
        start = perf_counter()
        stored = await begin_rounds(self._database, [(view.turn, round) for view, round in begun.items()])
        PERSIST_SECONDS.labels("begin_rounds").observe(perf_counter() - start)
        for view, round in begun.items():
            if view.turn.id in stored and view.begun == (round,):
                view.begun = ()
