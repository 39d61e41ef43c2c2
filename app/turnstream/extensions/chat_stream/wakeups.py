"""Wakes the readers of chats on every replica. Polls of the rows make up for lost notifications."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID
from weakref import WeakKeyDictionary

import structlog

from turnstream.domain.errors import StorageUnavailable
from turnstream.extensions.chat_stream.rows import ChatNews
from turnstream.libraries.broadcast import Broadcast, CountedWakeup

log = structlog.get_logger(__name__)


class ChatWakeups:
    """Wakes readers of chats. `notify` reaches every replica. If a notification is lost, the change is found within
    `interval` seconds.
    """

    def __init__(self, changes: ChatNews, notify: Callable[[str], Awaitable[None]], interval: float) -> None:
        self.broadcast = Broadcast("chat", notify)
        self._changes = changes
        self._interval = interval
        self._watched: WeakKeyDictionary[CountedWakeup, tuple[UUID, datetime | None]] = WeakKeyDictionary()

    def wakeup(self, chat: UUID) -> CountedWakeup:
        wakeup = self.broadcast.wakeup(str(chat))
        self._watched.setdefault(wakeup, (chat, None))
        return wakeup

    def notify(self, chat: UUID) -> None:
        """Wakes the readers of a chat after something in it was created, changed or deleted."""
        self.broadcast.notify(str(chat))

    async def watch(self) -> None:
        """Polls for changes whose notification was lost, until this task is cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.look()
            except StorageUnavailable as error:
                log.warning("chats.unwatched", error=str(error))

    async def look(self) -> None:
        """Wakes the readers of chats that have changed since the last poll. If there are no readers, does not query."""
        watched = dict(self._watched)
        if not watched:
            return
        times = await self._changes.times([chat for chat, _ in watched.values()])
        for wakeup, (chat, changed_at) in watched.items():
            if changed_at != (now := times.get(chat)):
                self._watched[wakeup] = chat, now
                wakeup.notify()
