"""A provider that goes silent is given up, at no cost for each thing it says."""

import asyncio
from types import TracebackType
from typing import Self

from app.domain.errors import TransientError


class StallTimeout:
    """Inside it, a wait (from `wait` to `pause`) that lasts for `seconds`, or up to a quarter longer, is ended.

    A timer looks now and then, so that waiting and not waiting are two plain assignments.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait(self) -> None:
        self._since = self._loop.time()

    def pause(self) -> None:
        self._since = None

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self.wait()
        self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            message = f"the provider was silent for {self._seconds:g} s"
            raise TransientError("stall_timeout", message) from None

    def _look(self) -> None:
        now = self._loop.time()
        if self._since is not None and now - self._since >= self._seconds:
            self._limit.reschedule(now)
        else:
            self._timer = self._loop.call_later(self._seconds / 4, self._look)
