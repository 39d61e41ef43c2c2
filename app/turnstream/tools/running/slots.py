"""Slots for tool calls, distributed fairly among owners."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """A pool of `most` slots. A free slot goes to the waiting owner with the fewest running calls. With `reserved`, an
    owner may have at most as many running calls as there are free slots: of 64 slots, the first owner gets 32 and the
    next owner 16. So a slot remains for another owner, however long calls take.
    """

    def __init__(self, most: int, *, reserved: bool = False) -> None:
        self._free = most
        self._reserved = reserved
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """Waits for a slot for the owner, and releases the slot at the end of the block."""
        if owner not in self._waiting and self._may_take(owner):
            self._take(owner)
        else:
            await self._wait(owner)
        try:
            yield
        finally:
            self._give_back(owner)

    def _may_take(self, owner: str) -> bool:
        return self._free > (self._running[owner] if self._reserved else 0)

    def _take(self, owner: str) -> None:
        self._free -= 1
        self._running[owner] += 1

    async def _wait(self, owner: str) -> None:
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # the slot was granted at the same moment
                self._give_back(owner)
            else:
                self._forget(owner, granted)
            raise

    def _give_back(self, owner: str) -> None:
        self._free += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        while owners := [each for each in self._waiting if self._may_take(each)]:
            # If several owners have equally few calls, the first owner in the dict has waited longest.
            next_owner = min(owners, key=lambda each: self._running[each])
            granted = self._waiting[next_owner][0]
            self._forget(next_owner, granted)
            self._take(next_owner)
            granted.set_result(None)

    def _forget(self, owner: str, granted: asyncio.Future[None]) -> None:
        queue = self._waiting.pop(owner)
        queue.remove(granted)
        if queue:
            self._waiting[owner] = queue  # moves the owner behind the others
