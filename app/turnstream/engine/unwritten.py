"""Closed blocks of a reply that have no row yet."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from turnstream.domain.blocks import Block
from turnstream.engine.recorder import to_the_end
from turnstream.llm.accumulator import Change

# Seconds for which a closed block waits for the next part. Readers have its text already.
LONGEST_WAIT = 0.05


class Unwritten:
    """Holds the unrecorded changes of the last read in `ahead`, and the text block before them. The text block waits
    briefly, to share the write of the round's seal. If no seal comes, `write` writes the block alone. `waits` is true
    from `keep` until the reply continues.
    """

    def __init__(self, write: Callable[[Block], Awaitable[None]]) -> None:
        self.ahead: Sequence[Change] = ()
        self.waits = False
        self._text: Block | None = None
        self._write = write
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.Task[None] | None = None

    @property
    def blocks(self) -> list[Block]:
        return [change for change in (self._text, *self.ahead) if isinstance(change, Block)]

    def keep(self, text: Block) -> None:
        """Keeps the text block that closed at the end of the last read."""
        self.ahead = ()
        self._text, self.waits = text, True
        self._timer = asyncio.get_running_loop().call_later(LONGEST_WAIT, self._write_late)

    async def write(self) -> None:
        """Writes the waiting text block, because the reply continues after it."""
        await self.settle()
        self.waits = False
        # Set before the write, which runs to its end even if cancelled: the block is not left open.
        text, self._text = self._text, None
        if text is not None:
            await self._write(text)

    async def settle(self) -> None:
        """Waits for a write that has started, and prevents a later write."""
        if self._timer is not None:
            self._timer.cancel()
        if self._late is not None:
            late, self._late = self._late, None
            # Shielded: a write that is cancelled before its first step would lose the block.
            await to_the_end(late)

    def forget(self) -> None:
        """Drops the unrecorded changes."""
        self.ahead, self._text, self.waits = (), None, False

    def _write_late(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            self._late = asyncio.ensure_future(self._write(text))
