"""Deliveries: readers without a task of their own for waits and writes. One pass writes to all woken readers."""

import asyncio
from collections import deque
from typing import Protocol

from turnstream.stream.reader import TurnReader

# Deliveries of one pass; the rest follow in the next. A pass of this size takes some milliseconds.
_MOST_AT_ONCE = 200


class Sink(Protocol):
    """The client's side of a delivery. While it `is_writable`, a write accepts all bytes and does not wait."""

    @property
    def is_writable(self) -> bool: ...
    def write(self, data: bytes) -> None: ...


class Deliveries:
    """The pass over all deliveries that were woken since the last one, in the next iteration of the event loop: the
    appends of several turns in one iteration, as at a beat of the frame clock, cost one callback.
    """

    def __init__(self) -> None:
        self._woken: deque[Delivery] = deque()

    def add(self, delivery: "Delivery") -> None:
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._woken.append(delivery)

    def _deliver(self) -> None:
        woken = self._woken
        for _ in range(min(len(woken), _MOST_AT_ONCE)):
            # Removed only afterwards: while one is left, a pass is due or running.
            woken[0].deliver()
            woken.popleft()
        if woken:
            asyncio.get_running_loop().call_soon(self._deliver)


class Delivery:
    """A reader and the `sink` of its frames. A sink that is not writable is skipped: its reader keeps its cursor, and
    later gets fewer, longer deltas.
    """

    __slots__ = ("_deliveries", "_is_woken", "_reader", "_sink", "_stopped")
    _stopped: asyncio.Future[None]

    def __init__(self, deliveries: Deliveries, reader: TurnReader, sink: Sink) -> None:
        self._deliveries = deliveries
        self._reader = reader
        self._sink = sink
        self._is_woken = False

    async def run(self) -> None:
        """Delivers until the turn has ended. The caller's task waits meanwhile. It finds the turn's view again if the
        present one has no writer any more: this may query the database for the request.
        """
        reader, loop = self._reader, asyncio.get_running_loop()
        while not reader.done:
            view, self._stopped = reader.view, loop.create_future()
            self.wake()
            try:
                await self._stopped
            finally:
                view.wakeup.forget(self.wake)
            if not reader.done:
                await reader.renew()

    def wake(self) -> None:
        """Called when there may be more events, and when the sink becomes writable."""
        if not self._is_woken:
            self._is_woken = True
            self._deliveries.add(self)

    def deliver(self) -> None:
        """Writes one portion of the due events. The next pass continues with the rest."""
        self._is_woken = False
        if self._stopped.done():
            return
        reader, sink = self._reader, self._sink
        try:
            if not sink.is_writable:
                return
            if frames := reader.look():
                sink.write(frames)
                if not reader.is_current:
                    self.wake()
                    return
            stops = reader.done or not reader.fed
        except Exception as error:  # noqa: BLE001, one reader of many must not take the others with it
            self._stopped.set_exception(error)
            return
        if stops:
            self._stopped.set_result(None)
        else:
            reader.view.wakeup.call(self.wake)
