"""Watches open transactions. A transaction that is open for hours prevents VACUUM from removing rows that were deleted
since its start.
"""

import asyncio
from contextlib import suppress

from turnstream.domain.errors import StorageUnavailable
from turnstream.libraries.extension_metrics import OLDEST_TRANSACTION_SECONDS
from turnstream.libraries.oldest_transaction import OLDEST_TRANSACTION
from turnstream.storage.database import Database

_INTERVAL = 15.0  # seconds between two checks of a replica


class TransactionWatch:
    """Sets the metric of the oldest transaction's age."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Checks until it is cancelled."""
        while True:
            with suppress(StorageUnavailable):  # the next check repeats the read
                await self.look()
            await asyncio.sleep(_INTERVAL)

    async def look(self) -> None:
        (row,) = await self._database.rows(OLDEST_TRANSACTION)
        OLDEST_TRANSACTION_SECONDS.set(row["seconds"])
