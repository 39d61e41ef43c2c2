"""A notification without content, whose receivers query the changes."""

import asyncio
from collections.abc import Callable


class Wakeup:
    """Wakes all waiting tasks, once. A notification is lost if no task waits for it, so a task must query first and
    then wait, without an await in between.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiting)

    @property
    def waiters(self) -> int:
        return len(self._waiting)

    def notify(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for wake in waiting:
                wake()

    def call(self, wake: Callable[[], None]) -> None:
        """Calls `wake` at the next notification. `wake` must not raise."""
        self._waiting[wake] = None

    def forget(self, wake: Callable[[], None]) -> None:
        self._waiting.pop(wake, None)

    async def wait(self) -> None:
        await wait_for_any(self)


async def wait_for_any(*wakeups: Wakeup) -> None:
    """Returns when one of `wakeups` is notified."""
    future = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    for wakeup in wakeups:
        wakeup.call(wake)
    try:
        await future
    finally:
        for wakeup in wakeups:
            wakeup.forget(wake)
