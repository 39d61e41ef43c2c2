"""Writes the open text of all running turns to the journal, in one statement per tick. No turn waits for it."""

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
from app.telemetry import PERSIST_SECONDS

log = structlog.get_logger(__name__)


class Written(NamedTuple):
    """An open block, by its mark and as the journal names it, and how much of its text is in the journal."""

    start: BlockStart
    head: Block
    done: int


class JournalWriter:
    """`interval` is the tick in seconds: what a kill can cost of the text of an open block."""

    def __init__(self, journal: Journal, directory: Directory, interval: float) -> None:
        self._journal = journal
        self._directory = directory
        self._interval = interval
        self._written: dict[LiveView, Written] = {}

    async def run(self) -> None:
        """For ever."""
        with suppress(StorageUnavailable):
            await self._journal.begin()
        while True:
            await asyncio.sleep(self._interval)
            await self.flush()

    async def flush(self) -> None:
        """One tick."""
        written: dict[LiveView, Written] = {}
        pieces = dict(self._pieces(written))
        if pieces:
            start = perf_counter()
            try:
                taken = await self._journal.append(list(pieces.values()))
                if len(taken) < len(pieces) and await self._journal.begin():
                    written.clear()  # Postgres has crashed and forgotten it: all is written again
            except StorageUnavailable as error:
                log.warning("journal.waits", error=str(error))
                return  # the same is written again from the same places: readers elsewhere go by those
            PERSIST_SECONDS.labels("journal").observe(perf_counter() - start)
        self._written = written

    def _pieces(self, written: dict[LiveView, Written]) -> Iterator[tuple[LiveView, JournalEntry]]:
        for view in self._directory.here():
            start = view.marks[-1]
            if not isinstance(start, BlockStart):
                continue
            known = self._written.get(view)
            if known is None or known.start is not start:
                known = Written(start, _head(view, start), -1)
            if view.open_length > known.done:
                done = max(known.done, 0)
                text = view.open_text(done)
                yield view, JournalEntry(view.turn.id, known.head, done, text)
                known = Written(start, known.head, done + len(text))
            written[view] = known


def _head(view: LiveView, start: BlockStart) -> Block:
    return Block(
        index=start.index,
        round=start.round,
        attempt=view.attempt,
        type=start.type,
        tool_use_id=start.tool_use_id,
        name=start.name,
    )
