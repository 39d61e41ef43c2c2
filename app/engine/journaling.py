"""Writes the open text of all running turns to the journal, in one statement per tick. No turn waits for it."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from time import perf_counter
from uuid import UUID

import structlog

from app.domain.blocks import Block
from app.domain.errors import StorageUnavailable
from app.domain.events import BlockStart
from app.storage.journal import Journal, Piece
from app.stream.directory import Directory
from app.stream.live import LiveView
from app.telemetry import PERSIST_SECONDS

log = structlog.get_logger(__name__)

# Attempt and index of the block that is open, and how much of its text is in the journal.
Position = tuple[int, int, int]


class Journaling:
    """`interval` is the tick in seconds: what a kill can cost of the text of an open block."""

    def __init__(self, journal: Journal, directory: Directory, interval: float) -> None:
        self._journal = journal
        self._directory = directory
        self._interval = interval
        self._written: dict[UUID, Position] = {}

    async def run(self) -> None:
        """For ever."""
        with suppress(StorageUnavailable):
            await self._journal.begin()
        while True:
            await asyncio.sleep(self._interval)
            await self.flush()

    async def flush(self) -> None:
        """One tick."""
        written: dict[UUID, Position] = {}
        pieces = list(self._pieces(written))
        if pieces:
            start = perf_counter()
            try:
                taken = await self._journal.append(pieces)
                if len(taken) < len(pieces):
                    await self._journal.begin()
            except StorageUnavailable as error:
                log.warning("journal.waits", error=str(error))
                taken = frozenset()
            for refused in {piece.turn for piece in pieces} - taken:
                del written[refused]
            PERSIST_SECONDS.labels("journal").observe(perf_counter() - start)
        self._written = written

    def _pieces(self, written: dict[UUID, Position]) -> Iterator[Piece]:
        for view in self._directory.here():
            start = view.marks[-1]
            if not isinstance(start, BlockStart):
                continue
            turn, length = view.turn.id, view.open_length
            known = self._written.get(turn)
            done = known[2] if known is not None and known[:2] == (view.attempt, start.index) else -1
            if length > done:
                done = max(done, 0)
                text = view.open_text(done)
                yield Piece(turn, _head(view, start), done, text)
                done += len(text)
            written[turn] = (view.attempt, start.index, done)


def _head(view: LiveView, start: BlockStart) -> Block:
    return Block(
        index=start.index,
        round=start.round,
        attempt=view.attempt,
        type=start.type,
        tool_use_id=start.tool_use_id,
        name=start.name,
    )
