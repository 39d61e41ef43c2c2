"""A wake-up that carries no truth: whoever wakes looks for itself."""

import asyncio


class Wakeup:
    """Wakes everyone who waits now. With nobody waiting a ring is lost: look first, then wait, no await between."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiting)

    def notify(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def wait(self) -> None:
        await wait_for_any(self)


async def wait_for_any(*doorbells: Wakeup) -> None:
    """Returns when one of them rings."""
    future = asyncio.get_running_loop().create_future()
    for doorbell in doorbells:
        doorbell._waiting[future] = None
    try:
        await future
    finally:
        for doorbell in doorbells:
            doorbell._waiting.pop(future, None)
