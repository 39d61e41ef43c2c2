"""Blocks of a reply that the model has closed and no row holds yet."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from turnstream.domain.blocks import Block
from turnstream.engine.recorder import to_the_end
from turnstream.llm.accumulator import Change

# Seconds that a closed block waits for what follows it. Its text is in front of the readers already.
LONGEST_WAIT = 0.05


class Unwritten:
    """The changes of the last read that are not recorded, in `ahead`, and before them the last text of the reply. This
    waits for a moment to be written together with the seal of its round. Without a seal, `write` gets it by itself.
    `waits` is true until a text that was kept is written.
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
        """Lets the text, which ended the last read, wait."""
        self.ahead = ()
        self._text, self.waits = text, True
        self._timer = asyncio.get_running_loop().call_later(LONGEST_WAIT, self._write_late)

    async def write(self) -> None:
        """Writes a text that waits: the reply continues after it."""
        await self.settle()
        self.waits = False
        # Set first: a write runs to its end even when cancelled, so the block is not left open.
        text, self._text = self._text, None
        if text is not None:
            await self._write(text)

    async def settle(self) -> None:
        """Waits for a write that is under way. From now on none begins."""
        if self._timer is not None:
            self._timer.cancel()
        if self._late is not None:
            late, self._late = self._late, None
            # A cancellation must not reach it: before its first step it would write nothing, and the block be lost.
            await to_the_end(late)

    def forget(self) -> None:
        """Drops what is not recorded."""
        self.ahead, self._text, self.waits = (), None, False

    def _write_late(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            self._late = asyncio.ensure_future(self._write(text))
