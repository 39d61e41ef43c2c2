"""Logs what blocks a migration, which waits without a limit: other migrations, locks of tables, old transactions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import asyncpg
import structlog

from turnstream.storage.database import plain_url, single_connection

log = structlog.get_logger(__name__)

PAUSE: Final = 5.0  # seconds between two checks

# The holder of the advisory lock is another migration. `pg_blocking_pids` omits it, because this migration only polls.
_BLOCKERS: Final = """
SELECT pid, coalesce(usename, '') AS user, application_name AS application, coalesce(state, '') AS state,
    round(extract(epoch FROM clock_timestamp() - coalesce(xact_start, backend_start)))::float AS seconds
FROM pg_stat_activity
WHERE pid = ANY (pg_blocking_pids($1)) OR pid IN (
    SELECT pid FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND pid <> $1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32) + objid::bigint = $2)
ORDER BY pid
"""


@asynccontextmanager
async def waits_reported(url: str, pid: int, lock: int) -> AsyncIterator[None]:
    """Logs every few seconds which sessions block the session `pid`, or hold the advisory lock."""
    reporting = asyncio.create_task(_report(url, pid, lock))
    try:
        yield
    finally:
        reporting.cancel()
        with suppress(asyncio.CancelledError):
            await reporting


async def _report(url: str, pid: int, lock: int) -> None:
    """Waits before it opens its connection, so that only a slow migration opens a connection."""
    await asyncio.sleep(PAUSE)
    with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):  # the migration itself reports its failure
        async with single_connection(plain_url(url)) as connection:
            while True:
                for each in await connection.fetch(_BLOCKERS, pid, lock):
                    log.warning("migration.waits", **each)
                await asyncio.sleep(PAUSE)
