"""A wake-up that carries no truth: whoever wakes looks for itself."""

import asyncio


class Doorbell:
    """Wakes everyone who waits now. With nobody waiting a ring is lost: look first, then wait, no await between."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def awaited(self) -> bool:
        return bool(self._waiting)

    def ring(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        finally:
            if not future.done() or future.cancelled():
                self._forget(future)

    def _forget(self, future: asyncio.Future[None]) -> None:
        if future in self._waiting:
            self._waiting.remove(future)
