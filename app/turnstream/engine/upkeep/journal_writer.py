"""The journal writer: appends the open text of all running turns to this replica's log, in one row per tick, and stores
the log durably about once a second. No turn waits for a write, and no tick waits for the disk.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import structlog

from turnstream.domain.errors import StorageUnavailable
from turnstream.domain.events import BlockStart
from turnstream.storage.runs.journal import Journal, JournalEntry
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView
from turnstream.telemetry import JOURNAL_LAG_SECONDS, PERSIST_SECONDS

log = structlog.get_logger(__name__)

_BETWEEN_LINES = 10.0  # seconds between two log lines, because the log may be on the disk that is full
CHECKPOINT = 1.0  # seconds between two checkpoints; with a longer tick, one checkpoint per tick


@dataclass(slots=True, eq=False)
class OpenBlock:
    """An open block, and how many of its characters are `logged` and `stored` (-1 if there is no row yet)."""

    start: BlockStart
    logged: int = -1
    stored: int = -1


class JournalWriter:
    """`interval` is the tick in seconds. A kill loses at most the open text of one tick."""

    def __init__(self, journal: Journal, directory: Directory, interval: float) -> None:
        self._journal = journal
        self._directory = directory
        self._interval = interval
        self._open: dict[LiveView, OpenBlock] = {}
        self._flushed = self._stored = self._next_line = perf_counter()
        self._ticking = asyncio.Lock()
        self._is_storing = False

    async def run(self) -> None:
        """Writes until it is cancelled. Ticks continue during a checkpoint, because its commit waits for the disk and
        readers on other replicas wait for ticks.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._interval)
                if await self.tick():
                    group.create_task(self.checkpoint())

    async def tick(self) -> bool:
        """Appends the text that is new at the time of the call. Returns whether a checkpoint is due."""
        async with self._ticking:
            return await self._append()

    async def _append(self) -> bool:
        start = perf_counter()
        is_due = not self._is_storing and start - self._stored >= CHECKPOINT
        entries, before = self._new_text()
        # If a checkpoint is due, a tick without text ends the log, so that the text of the last ticks is deleted.
        if not entries and not (is_due and self._journal.has_text):
            self._flushed = start
            JOURNAL_LAG_SECONDS.set(0)
            return False
        try:
            is_whole = await self._journal.append(entries)
        except StorageUnavailable as error:
            # The next tick must write the same text from the same offsets, because mirrors rely on the offsets.
            for block, logged in before:
                block.logged = logged
            self._wait(error)
            return False
        PERSIST_SECONDS.labels("journal").observe(perf_counter() - start)
        JOURNAL_LAG_SECONDS.set(start - self._flushed)
        self._flushed = perf_counter()
        if not is_whole:
            self._open.clear()
        return is_due and is_whole

    def _wait(self, error: StorageUnavailable) -> None:
        JOURNAL_LAG_SECONDS.set(perf_counter() - self._flushed)
        if (now := perf_counter()) >= self._next_line:
            log.warning("journal.waits", error=str(error))
            self._next_line = now + _BETWEEN_LINES

    def _new_text(self) -> tuple[Sequence[JournalEntry], Sequence[tuple[OpenBlock, int]]]:
        """Returns the pieces that the log lacks, at most one per turn, and how much of each block was logged before."""
        entries: list[JournalEntry] = []
        before: list[tuple[OpenBlock, int]] = []
        known, self._open = self._open, {}
        for view in self._directory.here():
            start = view.marks[-1]
            if not isinstance(start, BlockStart):
                continue
            block = known.get(view)
            if block is None or block.start is not start:
                block = OpenBlock(start)
            self._open[view] = block
            if view.open_length > block.logged:
                entry = _piece(view, start, max(block.logged, 0))
                entries.append(entry)
                before.append((block, block.logged))
                block.logged = entry.start + len(entry.text)
        return entries, before

    async def checkpoint(self) -> None:
        """Stores durably the text of the blocks that are still open."""
        begin, self._is_storing = perf_counter(), True
        entries: list[JournalEntry] = []
        lengths: list[tuple[OpenBlock, int]] = []
        for view, block in self._open.items():
            if view.marks[-1] is not block.start:
                continue
            done = block.stored
            while done < block.logged:
                entry = _piece(view, block.start, max(done, 0))
                entries.append(entry)
                done = entry.start + len(entry.text)
            lengths.append((block, done))
        try:
            await self._journal.checkpoint(entries)
        except StorageUnavailable as error:
            self._wait(error)  # the next checkpoint stores the text of both checkpoints
            return
        finally:
            self._is_storing = False
        for block, length in lengths:
            block.stored = length
        self._stored = begin
        PERSIST_SECONDS.labels("checkpoint").observe(perf_counter() - begin)


def _piece(view: LiveView, start: BlockStart, offset: int) -> JournalEntry:
    turn, text = view.turn, view.open_text(offset)
    call, name = start.tool_use_id, start.name
    return JournalEntry(turn.id, turn.attempt, start.index, offset, start.round, start.type, text, call, name)
