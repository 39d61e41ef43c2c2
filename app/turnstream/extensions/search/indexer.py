"""Indexes texts for the search about a second after they are committed, many turns at once."""

import asyncio
from time import perf_counter

import structlog

from turnstream.domain.errors import StatementTooLong, StorageUnavailable
from turnstream.extensions.search.index import SearchIndex
from turnstream.libraries.extension_metrics import SEARCH_LAG_SECONDS
from turnstream.storage.database import LONG

log = structlog.get_logger(__name__)

_INTERVAL = 1.0  # seconds between two polls of a replica


class SearchIndexer:
    """Runs in every replica, but only one replica indexes at a time. Pending texts are rows, so a killed process loses
    no text.
    """

    def __init__(self, search: SearchIndex) -> None:
        self._search = search

    async def run(self) -> None:
        """Indexes until it is cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                await self.look()
            except StatementTooLong as error:
                log.error("search.too_long", error=str(error), seconds=LONG)
                await asyncio.sleep(LONG)
            except StorageUnavailable:
                pass  # the next poll finds the texts

    async def look(self) -> None:
        """Indexes all waiting texts. If there are many, as after an import, each pause is as long as the work before
        it.
        """
        more = True
        while more:
            lag = await self._search.lag()
            SEARCH_LAG_SECONDS.set(lag or 0.0)
            if lag is None:
                return
            start = perf_counter()
            if more := await self._search.index():
                await asyncio.sleep(perf_counter() - start)
