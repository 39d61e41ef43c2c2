"""The last block of a reply, which is written together with the seal of its round where the end follows at once."""

import asyncio
from collections.abc import Awaitable, Callable

from turnstream.domain.blocks import Block
from turnstream.engine.recorder import to_the_end

# Seconds that a closed block waits for what follows it. Its text is in front of the readers already.
LONGEST_WAIT = 0.05


class LastBlock:
    """Keeps a closed block for a moment. Where no seal comes by then, it is given to `write` by itself. `block` is the
    one that no row holds; `waits` is true until all that was kept is written.
    """

    def __init__(self, write: Callable[[Block], Awaitable[None]]) -> None:
        self.block: Block | None = None
        self.waits = False
        self._write = write
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.Task[None] | None = None

    def keep(self, block: Block) -> None:
        self.block, self.waits = block, True
        self._timer = asyncio.get_running_loop().call_later(LONGEST_WAIT, self._write_late)

    async def write(self) -> None:
        """Writes the block, if one is kept: the reply goes on behind it."""
        await self.settle()
        self.waits = False
        # Set first: a write runs to its end even when cancelled, so the block is not left open.
        block, self.block = self.block, None
        if block is not None:
            await self._write(block)

    async def settle(self) -> None:
        """Waits for a write that is under way. From now on none begins."""
        if self._timer is not None:
            self._timer.cancel()
        if self._late is not None:
            late, self._late = self._late, None
            # A cancellation must not reach it: before its first step it would write nothing, and the block be lost.
            await to_the_end(late)

    def _write_late(self) -> None:
        block, self.block = self.block, None
        if block is not None:
            self._late = asyncio.ensure_future(self._write(block))
