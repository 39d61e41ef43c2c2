"""A notification without content: the woken task looks for itself what has changed."""

import asyncio


class Wakeup:
    """Wakes all tasks that wait now. With no task waiting a notification is lost: look first, then wait, and do not
    await anything in between.
    """

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


async def wait_for_any(*wakeups: Wakeup) -> None:
    """Returns when one of them is notified."""
    future = asyncio.get_running_loop().create_future()
    for wakeup in wakeups:
        wakeup._waiting[future] = None
    try:
        await future
    finally:
        for wakeup in wakeups:
            wakeup._waiting.pop(future, None)
