"""Deliveries, which serve readers without a task for each reader. One pass writes to all woken readers."""

import asyncio
from collections import deque
from copy import copy
from typing import Protocol

from turnstream.stream.live import LiveView
from turnstream.stream.reader import TurnReader

# The most writes in one pass; the next pass makes the other writes. A pass of this size takes some milliseconds.
_MOST_AT_ONCE = 200


class Sink(Protocol):
    """The client's side of a delivery. While it `is_writable`, a write accepts all bytes and does not wait."""

    @property
    def is_writable(self) -> bool: ...
    def write(self, data: bytes) -> None: ...


class Deliveries:
    """Serves all deliveries that were woken since the last pass, in the next iteration of the event loop. So appends to
    several turns in one iteration, as at a tick of the frame clock, cost one callback.
    """

    def __init__(self) -> None:
        self.crowds: dict[LiveView, Crowd] = {}
        self._woken: deque[Delivery | Crowd] = deque()

    def add(self, delivery: "Delivery | Crowd") -> None:
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._woken.append(delivery)

    def _deliver(self) -> None:
        woken, left = self._woken, _MOST_AT_ONCE
        for _ in range(min(len(woken), left)):
            # Removed only after its delivery, because `add` schedules a pass only if the queue is empty.
            left -= woken[0].deliver(left)
            woken.popleft()
            if left <= 0:
                break
        if woken:
            asyncio.get_running_loop().call_soon(self._deliver)


class Delivery:
    """A reader, and the `sink` that receives its frames. A delivery skips a sink that is not writable: the reader keeps
    its cursor, and later gets fewer, longer deltas.
    """

    __slots__ = ("_deliveries", "_is_stopped", "_is_woken", "_reader", "_renewal", "_sink", "_waits", "crowd")

    def __init__(self, deliveries: Deliveries, reader: TurnReader, sink: Sink) -> None:
        self._deliveries = deliveries
        self._reader = reader
        self._sink = sink
        self._is_woken = self._is_stopped = False
        self._waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._renewal: asyncio.Task[None] | None = None
        self.crowd: Crowd | None = None

    async def run(self) -> None:
        """Delivers until the turn has ended, or until `stop`. The caller's task waits meanwhile. If the view no longer
        has a writer, another view replaces it, perhaps after a query.
        """
        reader, loop = self._reader, asyncio.get_running_loop()
        try:
            while not self._is_over:
                view, self._waits = reader.view, loop.create_future()
                self.wake()
                try:
                    await self._waits
                finally:
                    view.wakeup.forget(self.wake)
                    if self.crowd is not None:
                        self.crowd.remove(self)
                if not self._is_over:
                    self._renewal = loop.create_task(reader.renew())
                    await self._renewal
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise

    @property
    def _is_over(self) -> bool:
        return self._reader.done or self._is_stopped

    def stop(self) -> None:
        """Ends `run`, at once or as soon as it begins."""
        self._is_stopped = True
        self._waits.cancel()
        if self._renewal is not None:
            self._renewal.cancel()

    def wake(self) -> None:
        """Schedules a delivery. Called when there may be more events, and when the sink becomes writable."""
        if not self._is_woken and self.crowd is None:
            self._is_woken = True
            self._deliveries.add(self)

    def deliver(self, _most: int) -> int:
        """Writes one portion of the due events, and returns 1. The next pass continues with the rest."""
        self._is_woken = False
        if self._waits.done():
            return 1
        reader, sink = self._reader, self._sink
        try:
            if not sink.is_writable:
                return 1
            if frames := reader.look():
                sink.write(frames)
                if not reader.is_current:
                    self.wake()
                    return 1
            stops = reader.done or not reader.fed
        except Exception as error:  # noqa: BLE001, one reader of many must not take the others with it
            self._waits.set_exception(error)
            return 1
        wakeup = reader.view.wakeup
        if stops:
            self._waits.set_result(None)
        elif wakeup.has_waiters and reader.shares and reader.is_current:
            self._join()
        else:
            wakeup.call(self.wake)
        return 1

    def _join(self) -> None:
        crowds, view = self._deliveries.crowds, self._reader.view
        crowd = crowds.get(view) or crowds.setdefault(view, Crowd(self._deliveries, self._reader))
        if crowd.is_woken:
            self.wake()  # the crowd's members do not have the newest content yet
        else:
            crowd.members[self], self.crowd = None, crowd

    def take(self, frames: bytes, reader: TurnReader) -> None:
        """Writes `frames`, which the crowd's `reader` has found. Without frames, the delivery leaves the crowd."""
        if self._waits.done() or self.crowd is None:
            return
        try:
            if frames and self._sink.is_writable:
                self._sink.write(frames)
                self._reader.advance_to(reader)
                return
        except Exception as error:  # noqa: BLE001, as above
            self._waits.set_exception(error)
        self.crowd.remove(self)
        self.wake()


class Crowd:
    """Several deliveries whose clients have all content of one view. New frames are encoded once for all clients."""

    def __init__(self, deliveries: Deliveries, reader: TurnReader) -> None:
        self.members: dict[Delivery, None] = {}
        self.is_woken = False
        self._deliveries = deliveries
        self._reader = copy(reader)
        self._frames = b""
        self._due: list[Delivery] = []  # members that have not received `_frames`
        reader.view.wakeup.call(self.wake)

    def remove(self, member: Delivery) -> None:
        member.crowd = None
        del self.members[member]
        if not self.members:
            self._reader.view.wakeup.forget(self.wake)
            del self._deliveries.crowds[self._reader.view]

    def wake(self) -> None:
        self.is_woken = True
        self._deliveries.add(self)

    def deliver(self, most: int) -> int:
        """Writes the next frames to at most `most` members. Returns the number of these members, at least 1."""
        reader = self._reader
        if not self._due:
            try:
                self._frames = reader.look()
            except Exception:  # noqa: BLE001, each member finds the same failure
                self._frames = b""
            self._due = list(self.members)
        now, self._due = self._due[:most], self._due[most:]
        for member in now:
            member.take(self._frames, reader)
        if self.members:
            self.is_woken = bool(self._due) or not (reader.is_current and reader.fed)
            if self.is_woken:
                self._deliveries.add(self)
            else:
                reader.view.wakeup.call(self.wake)
        return len(now) or 1
