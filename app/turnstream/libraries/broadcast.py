"""Wakes the readers of a key on every replica; the readers then query the rows."""

import asyncio
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

import structlog

from turnstream.domain.errors import StorageUnavailable
from turnstream.kit.ids import new_id
from turnstream.kit.signals import Signals
from turnstream.stream.wakeup import Wakeup

log = structlog.get_logger(__name__)

_MOST_AT_ONCE = 200  # keys in one notification: it has room for 8000 bytes, and a key has at most 36 bytes


class CountedWakeup(Wakeup):
    """A wake-up that counts its notifications in `number`. If the count changed during a read of the rows, a
    notification arrived during the read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def notify(self) -> None:
        self.number += 1
        super().notify()


class Broadcast:
    """Wakes readers on this replica at once, and readers on other replicas by a notification `KIND REPLICA KEY KEY…`. A
    replica that does not know the kind ignores the notification. A notification may be lost, so readers also read at
    intervals.

    After all keys are sent, `run` waits for `pause` seconds. Keys that arrive in this time share the next notification.
    """

    def __init__(self, kind: str, notify: Callable[[str], Awaitable[None]], pause: float = 0.0) -> None:
        self._kind = kind
        self._notify = notify
        self._pause = pause
        self._replica = new_id().hex
        # A wake-up is kept only as long as a reader has it.
        self._wakeups: WeakValueDictionary[str, CountedWakeup] = WeakValueDictionary()
        self._unsent: set[str] = set()
        self._is_due = asyncio.Event()

    def follow(self, signals: Signals) -> None:
        signals.notified.act(self.receive)
        signals.missed.act(self.wake_all)

    def wakeup(self, key: str) -> CountedWakeup:
        wakeup = self._wakeups.get(key)
        if wakeup is None:
            wakeup = self._wakeups[key] = CountedWakeup()
        return wakeup

    def notify(self, key: str) -> None:
        """Wakes the readers of `key`. Must be called after the commit of the change."""
        self._wake(key)
        self._unsent.add(key)
        self._is_due.set()

    def wake_all(self) -> None:
        """Wakes all readers on this replica after a time in which notifications may have been lost."""
        for key in [*self._wakeups]:
            self._wake(key)

    def receive(self, payload: str) -> None:
        """Receives a notification. If another replica sent it, wakes the readers of its keys on this replica."""
        kind, *rest = payload.split(" ")
        if kind == self._kind and rest[0] != self._replica:
            for key in rest[1:]:
                self._wake(key)

    async def run(self) -> None:
        """Sends notifications until it is cancelled."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            while self._unsent:
                keys = [self._unsent.pop() for _ in range(min(_MOST_AT_ONCE, len(self._unsent)))]
                try:
                    await self._notify(" ".join([self._kind, self._replica, *keys]))
                except StorageUnavailable as error:
                    log.warning("broadcast.unsent", error=str(error))
            await asyncio.sleep(self._pause)

    def _wake(self, key: str) -> None:
        if wakeup := self._wakeups.get(key):
            wakeup.notify()
