"""The doorbells of chats: they ring when something was made, changed or deleted, on whichever replica."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID
from weakref import WeakValueDictionary

import structlog

from app.domain.errors import StorageUnavailable
from app.kit.ids import new_id
from app.storage.chat_changes import ChatChanges
from app.stream.wakeup import Wakeup

log = structlog.get_logger(__name__)

_CHAT = "chat"
_MOST_AT_ONCE = 200  # ids in one notification, which has room for 8000 bytes


class ChatWakeup(Wakeup):
    """`rings` counts, so that a ring during a look at the rows is not lost."""

    def __init__(self) -> None:
        super().__init__()
        self.rings = 0
        self.changed_at: datetime | None = None

    def notify(self) -> None:
        self.rings += 1
        super().notify()


class ChatWakeups:
    """`notify` reaches every replica. What it loses is found by looking, every `interval` seconds."""

    def __init__(self, news: ChatChanges, notify: Callable[[str], Awaitable[None]], interval: float) -> None:
        self._news = news
        self._notify = notify
        self._interval = interval
        self._name = new_id().hex
        # A bell is there as long as somebody waits for it.
        self._bells: WeakValueDictionary[UUID, ChatWakeup] = WeakValueDictionary()
        self._untold: set[UUID] = set()
        self._rung = asyncio.Event()

    def bell(self, chat: UUID) -> ChatWakeup:
        bell = self._bells.get(chat)
        if bell is None:
            bell = self._bells[chat] = ChatWakeup()
        return bell

    def notify(self, chat: UUID) -> None:
        """Something was committed: here at once, elsewhere soon."""
        self._ring_here(chat)
        self._untold.add(chat)
        self._rung.set()

    def receive(self, payload: str) -> None:
        """What another replica rang for."""
        what, *rest = payload.split(" ")
        if what == _CHAT and rest[0] != self._name:
            for chat in rest[1:]:
                self._ring_here(UUID(chat))

    async def broadcast(self) -> None:
        """For ever: what was rung here is told to the others, as much as there is at once."""
        while True:
            await self._rung.wait()
            self._rung.clear()
            while self._untold:
                chats = [self._untold.pop() for _ in range(min(_MOST_AT_ONCE, len(self._untold)))]
                try:
                    await self._notify(" ".join([_CHAT, self._name, *map(str, chats)]))
                except StorageUnavailable as error:
                    log.warning("chats.untold", error=str(error))

    async def watch(self) -> None:
        """For ever: looks whether a ring was lost."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.look()
            except StorageUnavailable as error:
                log.warning("chats.unwatched", error=str(error))

    async def look(self) -> None:
        """Nobody waits for a chat: nothing is asked."""
        bells = dict(self._bells)
        if not bells:
            return
        times = await self._news.times(list(bells))
        for chat, bell in bells.items():
            if bell.changed_at != (changed_at := times.get(chat)):
                bell.changed_at = changed_at
                bell.notify()

    def _ring_here(self, chat: UUID) -> None:
        if bell := self._bells.get(chat):
            bell.notify()
