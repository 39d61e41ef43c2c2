"""The mirror: views of turns that run on other replicas, fed from rows and journal, all in one look per tick."""

import asyncio

import structlog

from app.domain.errors import StorageUnavailable
from app.storage.snapshots import Snapshots
from app.stream.directory import Directory

log = structlog.get_logger(__name__)


class Mirror:
    """`interval` is the tick in seconds: what a reader of a remote turn waits longer than one of a local turn."""

    def __init__(self, snapshots: Snapshots, directory: Directory, interval: float) -> None:
        self._snapshots = snapshots
        self._directory = directory
        self._interval = interval

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await self.look()
            except StorageUnavailable as error:
                log.warning("mirror.waits", error=str(error))
            await asyncio.sleep(self._interval)

    async def look(self) -> None:
        """One tick. Nobody reads elsewhere's turns: nothing is asked."""
        views = {view.turn.id: view for view in self._directory.mirrored()}
        if not views:
            return
        found = await self._snapshots.take({turn: view.turn for turn, view in views.items()})
        for turn, view in views.items():
            if snapshot := found.get(turn):
                view.adopt(snapshot.turn, snapshot.open_block)
            else:
                view.vanish()
