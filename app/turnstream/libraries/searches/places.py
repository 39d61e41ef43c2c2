"""Limits how many searches run at once, and how long a search takes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turnstream.domain.errors import RequestRefused, StatementTooLong
from turnstream.storage.database import Database, Statement, Transaction

# Limit in seconds for the wait for a search slot of the replica, and also for the search itself. Postgres cancels a
# search that exceeds the limit. The driver's limit is longer, because it only detects a Postgres that does not respond.
SEARCH_TIMEOUT = 2.0
SEARCH_ANSWER_TIMEOUT = 2 * SEARCH_TIMEOUT
_CONCURRENT_SEARCHES = 2

LIMIT_TIME = Statement("SELECT set_config('statement_timeout', :most, true)")


class Places:
    """The search slots of a replica."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_CONCURRENT_SEARCHES)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Holds a search slot during the block. Raises RequestRefused if no slot is freed in time."""
        try:
            async with asyncio.timeout(SEARCH_TIMEOUT):
                await self._free.acquire()
        except TimeoutError:
            raise _too_slow() from None
        try:
            yield
        finally:
            self._free.release()


@asynccontextmanager
async def limited(database: Database) -> AsyncIterator[Transaction]:
    """Yields a transaction in which Postgres cancels a statement that exceeds the limit. Raises RequestRefused in this
    case.
    """
    async with database.transaction() as connection:
        await connection.rows(LIMIT_TIME, most=f"{SEARCH_TIMEOUT * 1000:.0f}")
        try:
            yield connection
        except StatementTooLong:
            raise _too_slow() from None


def _too_slow() -> RequestRefused:
    return RequestRefused("`q` takes too long to be searched for; send other words, or try again later.", field="q")
