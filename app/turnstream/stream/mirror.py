"""The mirror updates views of turns that run on other replicas, from rows and journal, with one snapshot per tick."""

import asyncio
from contextlib import suppress

import structlog

from turnstream.domain.errors import Conflict, StorageUnavailable
from turnstream.domain.events import BlockStart
from turnstream.storage.runs.snapshots import MirrorPosition, Snapshots
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView

log = structlog.get_logger(__name__)

# Waiting turns are queried only in every tenth tick.
_TICKS_OF_WAITING = 10


class Mirror:
    """Updates mirrored views once per tick. `interval` is the tick in seconds, and the longest delay of readers."""

    def __init__(self, snapshots: Snapshots, directory: Directory, interval: float) -> None:
        self._snapshots = snapshots
        self._directory = directory
        self._interval = interval
        self._ticks = 0

    async def run(self) -> None:
        """Queries once per tick until cancelled. The tick includes the query; a slow query is followed by a pause.
        While no reader follows a remote turn, there are no ticks.
        """
        loop = asyncio.get_running_loop()
        while True:
            while not self._directory.mirrored():
                await self._directory.mirroring.wait()
            start = loop.time()
            try:
                await self.look()
            except StorageUnavailable as error:
                log.warning("mirror.waits", error=str(error))
            await asyncio.sleep(max(self._interval / 4, start + self._interval - loop.time()))

    async def look(self) -> None:
        """Runs one tick."""
        self._ticks += 1
        everyone = self._ticks % _TICKS_OF_WAITING == 0
        mirrored = self._directory.mirrored()
        views = {
            view.turn.id: view for view in mirrored if everyone or view.turn.status != "waiting" or view.provisional
        }
        if not views:
            return
        positions = {turn: _position(view) for turn, view in views.items()}
        try:
            found = await self._snapshots.take(positions)
        except Conflict as error:  # a turn that cannot be decrypted must not stop the others: each is read alone
            log.warning("mirror.waits", error=str(error))
            found = {}
            for turn, position in positions.items():
                with suppress(Conflict):
                    found |= await self._snapshots.take({turn: position})
        for turn, view in views.items():
            if snapshot := found.get(turn):
                view.adopt(snapshot.turn, snapshot.open_block, snapshot.start)
            else:
                view.vanish()


def _position(view: LiveView) -> MirrorPosition:
    # A replica that releases a turn stores the whole open text again, from its first character. So the text of a turn
    # that does not run is read from the beginning, as for a view without the journal.
    if view.turn.status != "running" or view.provisional:
        return MirrorPosition(view.turn)
    last = view.marks[-1]
    attempt = last.attempt if isinstance(last, BlockStart) else 0
    return MirrorPosition(view.turn, attempt, view.open_length, complete=True)
