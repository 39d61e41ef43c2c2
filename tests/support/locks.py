"""Forced races: a lock is held until all required sessions wait for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

# The query reads the lock table instead of `wait_event`: a process that has got its lock shows its old wait until it
# runs again.
_WAITING = """
SELECT count(DISTINCT pid) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE NOT granted AND datname = current_database() AND pid <> pg_backend_pid()
"""
# A waiting migration tries the lock again and again, and has no transaction between two tries.
_WAITING_TO_MIGRATE = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND query ~ '^SELECT pg_try_advisory_lock' AND pid <> pg_backend_pid()
"""


@asynccontextmanager
async def connection_to(url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """Yields a connection that is also closed after a failed test. Otherwise a later test would get the warning about
    the connection, and fail too.
    """
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close(timeout=10)


async def waiting_to_migrate(watcher: "asyncpg.Connection[Any]", count: int) -> None:
    """Waits until `count` other sessions wait to migrate."""
    while await watcher.fetchval(_WAITING_TO_MIGRATE) < count:  # noqa: ASYNC110, Postgres tells nobody
        await asyncio.sleep(0.01)


class Locker:
    """Holds locks on `connection`, and reads on `watcher` which sessions wait for them."""

    def __init__(self, connection: "asyncpg.Connection[Any]", watcher: "asyncpg.Connection[Any]") -> None:
        self.connection = connection
        self.watcher = watcher

    @asynccontextmanager
    async def holding(self, sql: str, *values: object, commit: bool = False) -> AsyncIterator[None]:
        """Executes `sql` at the start of the block, and rolls back or commits at its end. Then the waiting sessions
        continue.
        """
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            await self.connection.execute(sql, *values)
            yield
        finally:
            await (transaction.commit() if commit else transaction.rollback())

    async def number_waiting(self) -> int:
        """Returns how many other sessions wait for a lock."""
        return int(await self.watcher.fetchval(_WAITING))

    async def waiting(self, count: int = 1) -> None:
        """Waits until `count` other sessions wait for a lock."""
        while await self.number_waiting() < count:  # noqa: ASYNC110, Postgres tells nobody
            await asyncio.sleep(0.002)
