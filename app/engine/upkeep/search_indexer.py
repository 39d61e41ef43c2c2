"""The search indexer: indexes texts about a second after their commit, for many turns together."""

import asyncio
from contextlib import suppress
from time import perf_counter

from app.domain.errors import StorageUnavailable
from app.storage.chats.search import Search
from app.telemetry import SEARCH_LAG_SECONDS

_INTERVAL = 1.0  # seconds between two looks of a replica


class SearchIndexer:
    """Runs in every replica; one of them indexes at a time. What waits is in rows, so a kill leaves nothing out."""

    def __init__(self, search: Search) -> None:
        self._search = search

    async def run(self) -> None:
        """Indexes for ever."""
        while True:
            await asyncio.sleep(_INTERVAL)
            with suppress(StorageUnavailable):  # the next look finds it
                await self.look()

    async def look(self) -> None:
        """Indexes what there is. After an import it leaves Postgres as much time to others as it takes."""
        more = True
        while more:
            lag = await self._search.lag()
            SEARCH_LAG_SECONDS.set(lag or 0.0)
            if lag is None:
                return
            start = perf_counter()
            if more := await self._search.index():
                await asyncio.sleep(perf_counter() - start)
