"""The journal writer: stores the open text of all running turns, in one statement per tick. No turn waits for it."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter
from typing import NamedTuple

import structlog

from app.domain.blocks import Block
from app.domain.errors import StorageUnavailable
from app.domain.events import BlockStart
from app.storage.runs.journal import Journal, JournalEntry
from app.stream.directory import Directory
from app.stream.live import LiveView
from app.telemetry import JOURNAL_LAG_SECONDS, PERSIST_SECONDS

log = structlog.get_logger(__name__)


class Written(NamedTuple):
    """An open block: its mark, its head in the journal, and how many characters of its text the journal has (-1 before
    the first entry).
    """

    start: BlockStart
    head: Block
    done: int


class JournalWriter:
    """`interval` is the tick in seconds: a kill loses at most the open text of that time."""

    def __init__(self, journal: Journal, directory: Directory, interval: float) -> None:
        self._journal = journal
        self._directory = directory
        self._interval = interval
        self._written: dict[LiveView, Written] = {}
        self._flushed = perf_counter()

    async def run(self) -> None:
        """Writes for ever."""
        with suppress(StorageUnavailable):
            await self._journal.begin()
        while True:
            await asyncio.sleep(self._interval)
            await self.flush()

    async def flush(self) -> None:
        """Does one tick."""
        written: dict[LiveView, Written] = {}
        entries = dict(self._entries(written))
        if entries:
            start = perf_counter()
            try:
                written_now = await self._journal.append(list(entries.values()))
                if written_now < len(entries) and await self._journal.begin():
                    # The journal is an unlogged table: Postgres has crashed and emptied it. All is written again.
                    written.clear()
            except StorageUnavailable as error:
                JOURNAL_LAG_SECONDS.set(start - self._flushed)
                log.warning("journal.waits", error=str(error))
                # The next tick writes the same text from the same offsets: mirrors rely on the offsets.
                return
            PERSIST_SECONDS.labels("journal").observe(perf_counter() - start)
            JOURNAL_LAG_SECONDS.set(start - self._flushed)
        else:
            JOURNAL_LAG_SECONDS.set(0)
        self._written, self._flushed = written, perf_counter()

    def _entries(self, written: dict[LiveView, Written]) -> Iterator[tuple[LiveView, JournalEntry]]:
        for view in self._directory.here():
            start = view.marks[-1]
            if not isinstance(start, BlockStart):
                continue
            known = self._written.get(view)
            if known is None or known.start is not start:
                kind, call, name = start.type, start.tool_use_id, start.name
                head = Block(start.index, start.round, view.attempt, kind, tool_use_id=call, name=name)
                known = Written(start, head, -1)
            if view.open_length > known.done:
                done = max(known.done, 0)
                text = view.open_text(done)
                yield view, JournalEntry(view.turn.id, known.head, done, text)
                known = Written(start, known.head, done + len(text))
            written[view] = known
