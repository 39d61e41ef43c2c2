"""The mirror: views of turns that run on other replicas, fed from rows and journal, all in one look per tick."""

import asyncio

import structlog

from app.domain.errors import StorageUnavailable
from app.domain.events import BlockStart
from app.storage.runs.snapshots import MirrorPosition, Snapshots
from app.stream.directory import Directory
from app.stream.live import LiveView

log = structlog.get_logger(__name__)

_PATIENCE = 10


class Mirror:
    """`interval` is the tick in seconds: what a reader of a remote turn waits longer than one of a local turn. One that
    waits for a person is looked at every tenth tick.
    """

    def __init__(self, snapshots: Snapshots, directory: Directory, interval: float) -> None:
        self._snapshots = snapshots
        self._directory = directory
        self._interval = interval
        self._ticks = 0

    async def run(self) -> None:
        """For ever, and on time: what a look takes does not come on top, but there is always a pause."""
        loop = asyncio.get_running_loop()
        while True:
            start = loop.time()
            try:
                await self.look()
            except StorageUnavailable as error:
                log.warning("mirror.waits", error=str(error))
            await asyncio.sleep(max(self._interval / 4, start + self._interval - loop.time()))

    async def look(self) -> None:
        """One tick. Nobody reads elsewhere's turns: nothing is asked."""
        self._ticks += 1
        patient = self._ticks % _PATIENCE == 0
        mirrored = self._directory.mirrored()
        views = {
            view.turn.id: view for view in mirrored if patient or view.turn.status != "waiting" or view.provisional
        }
        if not views:
            return
        found = await self._snapshots.take({turn: _known(view) for turn, view in views.items()})
        for turn, view in views.items():
            if snapshot := found.get(turn):
                view.adopt(snapshot.turn, snapshot.open_block, snapshot.start)
            else:
                view.vanish()


def _known(view: LiveView) -> MirrorPosition:
    last = view.marks[-1]
    # An owner that lets go writes the whole text at its beginning: one more look at all of it.
    if view.turn.status != "running" or not isinstance(last, BlockStart):
        return MirrorPosition(view.turn)
    return MirrorPosition(view.turn, last.attempt, view.open_length)
