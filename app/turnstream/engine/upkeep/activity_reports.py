"""Reports of this replica about the turns that it runs, so that people can ask any replica why a turn does not move."""

import asyncio
from collections.abc import Callable, Mapping
from uuid import UUID

from turnstream.domain.activity import REPORTS, Activity
from turnstream.domain.errors import StorageUnavailable
from turnstream.storage.activities import report_activity
from turnstream.storage.database import Database


class ActivityReports:
    """One statement every few seconds while there is something to report: no delta and no turn waits for it."""

    def __init__(self, activity: Callable[[], Mapping[UUID, Activity]], database: Database, replica: UUID) -> None:
        self._activity = activity
        self._database = database
        self._replica = replica
        self._reported = False

    async def run(self) -> None:
        """Reports without end."""
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
            pass  # the next report comes soon; others log that Postgres is away
