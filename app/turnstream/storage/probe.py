"""Checks whether Postgres answers."""

import asyncio

from turnstream.storage.database import Database, Row, Statement

_PROBE_TIMEOUT = 2.0  # seconds, because load balancers do not wait much longer
SELECT_ONE = Statement("SELECT 1")


class Probe:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._running: asyncio.Task[Row | None] | None = None

    async def send(self) -> None:
        """Simultaneous calls share one statement, which outlasts its callers. Raises StorageError and TimeoutError."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(asyncio.wait_for(self._database.row(SELECT_ONE), _PROBE_TIMEOUT))
            self._running.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._running)
