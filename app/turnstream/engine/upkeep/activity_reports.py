"""Reports of this replica about its turns, so that every replica can explain why a turn does not progress."""

import asyncio
from collections.abc import Callable, Mapping
from uuid import UUID

from turnstream.domain.activity import REPORTS, Activity
from turnstream.domain.errors import StorageUnavailable
from turnstream.storage.activities import report_activity
from turnstream.storage.database import Database


class ActivityReports:
    """Writes one statement every few seconds while the replica has activity. No delta and no turn waits for it."""

    def __init__(self, activity: Callable[[], Mapping[UUID, Activity]], database: Database, replica: UUID) -> None:
        self._activity = activity
        self._database = database
        self._replica = replica
        self._reported = False

    async def run(self) -> None:
        """Reports until it is cancelled."""
        while True:
            await asyncio.sleep(REPORTS)
            await self.report()

    async def report(self) -> None:
        turns = self._activity()
        if not turns and not self._reported:
            return
        try:
            await report_activity(self._database, self._replica, turns)
            self._reported = bool(turns)
        except StorageUnavailable:
            pass  # the next report is due soon; other tasks log the outage of Postgres
