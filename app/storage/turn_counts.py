"""The number of turns that are queued and that wait for a person, on all replicas together."""

import asyncio
from time import monotonic

from app.domain.errors import StorageError
from app.storage.database import Database, Statement

COUNT_OPEN = Statement(
    """
    SELECT count(*) FILTER (WHERE status = 'queued') AS queued, count(*) FILTER (WHERE status = 'waiting') AS waiting
    FROM turns WHERE status IN ('queued', 'waiting')
    """
)


class TurnCounts:
    """Counts at most once in `keep` seconds, however many ask, and within `timeout` seconds."""

    def __init__(self, database: Database, keep: float = 5.0, timeout: float = 1.0) -> None:
        self._database = database
        self._keep = keep
        self._timeout = timeout
        self._lock = asyncio.Lock()
        self._counted: float | None = None
        self._counts: tuple[int, int] | None = None

    async def queued_and_waiting(self) -> tuple[int, int] | None:
        """None where Postgres does not answer in time."""
        async with self._lock:
            if self._counted is None or monotonic() - self._counted >= self._keep:
                self._counts = await self._count()
                self._counted = monotonic()
            return self._counts

    async def _count(self) -> tuple[int, int] | None:
        try:
            async with asyncio.timeout(self._timeout):
                row = await self._database.row(COUNT_OPEN)
        except (StorageError, TimeoutError):
            return None
        return None if row is None else (row["queued"], row["waiting"])
