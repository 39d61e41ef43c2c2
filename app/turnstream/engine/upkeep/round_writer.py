"""The round writer: one statement per tick stores the new rounds of all running turns, and another statement reserves
the requests of model calls that have no reply yet.
"""

import asyncio
from contextlib import suppress
from time import perf_counter

from turnstream.domain.charges import call_of
from turnstream.domain.errors import StorageUnavailable
from turnstream.storage.database import Database
from turnstream.storage.owners.accounts import Accounts
from turnstream.storage.runs.record import begin_rounds
from turnstream.stream.directory import Directory
from turnstream.telemetry import PERSIST_SECONDS


class RoundWriter:
    """`interval` is the tick in seconds. No turn waits for a tick, because a turn's first write in a round also inserts
    the row of the round. If the process is killed before the tick and before this write, the round and the text of its
    open block are lost. A call that started less than a tick before the kill is not charged.
    """

    def __init__(self, database: Database, directory: Directory, interval: float) -> None:
        self._database = database
        self._accounts = Accounts(database)
        self._directory = directory
        self._interval = interval

    async def run(self) -> None:
        """Writes until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            with suppress(StorageUnavailable):  # the next tick writes the rounds
                await self.flush()

    async def flush(self) -> None:
        """Writes the rounds and reservations of one tick."""
        await self._reserve_requests()
        begun = {view: round for view in self._directory.here() for round in view.begun}
        if not begun:
            return
        start = perf_counter()
        stored = await begin_rounds(self._database, [(view.turn, round) for view, round in begun.items()])
        PERSIST_SECONDS.labels("begin_rounds").observe(perf_counter() - start)
        for view, round in begun.items():
            if view.turn.id in stored and view.begun == (round,):
                view.begun = ()

    async def _reserve_requests(self) -> None:
        waiting = [(view, view.turn, view.unreserved) for view in self._directory.here() if view.unreserved is not None]
        if not waiting:
            return
        requests = [(turn, request()) for _, turn, request in waiting]
        await self._accounts.reserve_requests(requests)
        for (view, turn, request), (_, charge) in zip(waiting, requests, strict=True):
            if view.unreserved is request:
                view.unreserved = None
            elif not any(call_of(round) == charge.call for round in view.turn.rounds):  # the call failed meanwhile
                await self._accounts.release_call(turn.id, charge.call)
