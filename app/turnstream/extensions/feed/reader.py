"""The feed of an owner: reads the changes in all of the owner's chats from rows, and resumes at a cursor."""

import asyncio
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Literal
from uuid import UUID

from turnstream.domain.chats import Chat
from turnstream.extensions.feed.rows import OVERLAP, OwnerChanges, OwnerUpdate, TurnStatus
from turnstream.kit.clock import CLOCK
from turnstream.libraries.broadcast import Broadcast, CountedWakeup
from turnstream.storage.database import Database, retry_while_unavailable
from turnstream.storage.retention import DELETIONS_KEPT

# A client that missed more changes than this reads its list of chats again, which is cheaper.
_MOST_MISSED = 200
# Most open turns that a cursor lists. Clients send the cursor in a header, so it must be short.
_MOST_NAMED = 64
_BATCH = 100  # events in one portion
# seconds between two notifications; one notification names all owners whose chats changed meanwhile
_NOTIFY_PAUSE = 0.1
_LOOK = 10.0  # seconds after which a reader reads without a wake-up
_READER_PAUSE = 0.1  # minimum seconds between two reads by one reader
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FORM = re.compile(r"([0-9a-f]{1,13})\.((?:[A-Za-z0-9_-]{22})*|~)")


@dataclass(frozen=True, slots=True)
class FeedCursor:
    """A client's position in the feed. The client has all changes before `time`, and may regard the `open` turns as
    open. `open` is None if there are too many open turns to list.
    """

    time: datetime
    open: tuple[UUID, ...] | None = ()

    def __str__(self) -> str:
        ids = [urlsafe_b64encode(turn.bytes).decode().rstrip("=") for turn in self.open or ()]
        names = "~" if self.open is None else "".join(ids)
        return f"{(self.time - _EPOCH) // _MICROSECOND:x}.{names}"

    @classmethod
    def parse(cls, text: str) -> "FeedCursor":
        """Parses the text of a cursor. Raises ValueError if the text is invalid."""
        found = _FORM.fullmatch(text)
        if found is None or len(found[2]) > 22 * _MOST_NAMED:
            raise ValueError(
                "the cursor of the feed is the id of one of its events, or the `cursor` of a list of chats"
            )
        time, names = _EPOCH + int(found[1], 16) * _MICROSECOND, found[2]
        if names == "~":
            return cls(time, None)
        ids = [urlsafe_b64decode(names[start : start + 22] + "==") for start in range(0, len(names), 22)]
        return cls(time, tuple(UUID(bytes=id) for id in ids))


@dataclass(frozen=True, slots=True)
class DeletedChat:
    id: UUID


# "reset": the cursor is too old, or too many changes followed; the client reads its list of chats again.
FeedEvent = Chat | DeletedChat | TurnStatus | Literal["reset"]
# Encodes a frame. None instead of an event means that only the cursor advances.
EncodeFeed = Callable[[FeedEvent | None, FeedCursor], bytes]


class OwnerFeed:
    """Opens readers of the owners' feeds, and wakes them after changes."""

    def __init__(self, notify_peers: Callable[[str], Awaitable[None]]) -> None:
        self.broadcast = Broadcast("owner", notify_peers, _NOTIFY_PAUSE)
        self._changes: OwnerChanges | None = None

    def changes(self, database: Database) -> OwnerChanges:
        """Returns the `OwnerChanges` that all requests share. `database` is the database of the API, which is always
        the same.
        """
        self._changes = self._changes or OwnerChanges(database)
        return self._changes

    def notify(self, owner: str) -> None:
        """Wakes the readers of the owner's feed on every replica, after a change was committed."""
        self.broadcast.notify(_key(owner))

    async def cursor(self, database: Database, time: datetime | None = None) -> str:
        """Returns the cursor for a client that reads all chats as they are at `time`, by default now."""
        settled = (await self.changes(database).time())[1] if time is None else CLOCK.in_order(time)
        return str(FeedCursor(settled))

    async def open(self, database: Database, owner: str, cursor: FeedCursor | None, encode: EncodeFeed) -> "FeedReader":
        """Opens a reader that starts at `cursor`, or now if there is no cursor."""
        reader = FeedReader(self.changes(database), self.broadcast.wakeup(_key(owner)), owner, encode)
        await reader.open(cursor)
        return reader


class FeedReader:
    """Reads the rows, sends the differences from its last read, and waits for the next change."""

    def __init__(self, changes: OwnerChanges, wakeup: CountedWakeup, owner: str, encode: EncodeFeed) -> None:
        self._changes = changes
        self._wakeup = wakeup
        self._owner = owner
        self._encode = encode
        self._number = wakeup.number
        self._cursor = FeedCursor(_EPOCH)
        # The rows of the last query. If the next query returns a row with the same state, that state was sent before.
        self._seen_at = _EPOCH
        self._chats: Mapping[UUID, datetime] = {}
        self._deleted: dict[UUID, datetime] = {}
        self._turns: dict[UUID, TurnStatus] = {}
        self._first: Sequence[FeedEvent] = ()

    async def open(self, cursor: FeedCursor | None) -> None:
        """Finds the changes since `cursor`, and the open turns."""
        now, settled = await self._changes.time()
        open_turns = await self._changes.open_turns(self._owner)
        # If the clock has repeated a time, the time does not identify the changes that the client has.
        is_known = (
            cursor and now - DELETIONS_KEPT < cursor.time < now + OVERLAP and CLOCK.in_order(cursor.time) == cursor.time
        )
        if cursor and cursor.open is not None and is_known:
            turns = {*cursor.open, *open_turns}
            # While a transaction is open, even a new list of chats gets a cursor from before the start of that
            # transaction. So a reset only helps clients whose cursors are older than that.
            most = _MOST_MISSED if cursor.time < settled - OVERLAP else None
            update = await self._changes.since(self._owner, cursor.time, turns, {}, most)
            if update is not None:
                self._cursor, self._first = cursor, self._take(update)
                return
        update = await self._changes.since(self._owner, settled, open_turns, {})
        assert update is not None
        self._take(update)  # the client's list contains these chats, but not the open turns
        events = [turn for turn in update.turns if turn.changes]
        self._cursor, self._first = FeedCursor(settled), events if cursor is None else ["reset", *events]

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yields the frames of the events after the cursor, until the generator is cancelled. Only the last event of a
        read advances the time of the cursor.
        """
        yield self._encode(None, self._cursor)
        events = self._first
        while True:
            cursors = [self._cursor_meanwhile()] * len(events)
            cursors[-1:] = [self._cursor_now()] if events else []
            for start in range(0, len(events), _BATCH):
                yield b"".join(map(self._encode, events[start : start + _BATCH], cursors[start : start + _BATCH]))
            self._cursor = self._cursor_now()
            await asyncio.sleep(_READER_PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    while self._wakeup.number == self._number:
                        await self._wakeup.wait()
            self._number = self._wakeup.number  # before the read: a change during the read causes another read
            known = [turn.id for turn in self._open]
            update = await retry_while_unavailable(
                partial(self._changes.since, self._owner, self._seen_at, known, self._chats)
            )
            assert update is not None
            events = self._take(update)

    def _take(self, update: OwnerUpdate) -> list[FeedEvent]:
        """Returns the events between the last read and `update`, and stores `update` as the last read."""
        events: list[FeedEvent] = list(update.chats)
        events += [DeletedChat(chat) for chat, at in update.deleted if self._deleted.get(chat) != at]
        events += [turn for turn in update.turns if self._turns.get(turn.id) != turn]
        self._seen_at = update.seen_at
        self._chats = update.found
        self._deleted = dict(update.deleted)
        self._turns = {turn.id: turn for turn in update.turns}
        return events

    @property
    def _open(self) -> list[TurnStatus]:
        return [turn for turn in self._turns.values() if turn.changes]

    def _cursor_now(self) -> FeedCursor:
        return _cursor(self._seen_at, [turn.id for turn in self._open])

    def _cursor_meanwhile(self) -> FeedCursor:
        """Returns the cursor for all events of a read except the last. The cursor lists every turn that the client may
        regard as open, because the next query finds the older rows of such turns only by their ids.
        """
        before, now = self._cursor, [turn.id for turn in self._open]
        return before if before.open is None else _cursor(before.time, list(dict.fromkeys([*before.open, *now])))


def _cursor(time: datetime, open_turns: Sequence[UUID]) -> FeedCursor:
    return FeedCursor(time, tuple(open_turns) if len(open_turns) <= _MOST_NAMED else None)


def _key(owner: str) -> str:
    """Returns a digest, because an owner's name may be long and may contain spaces."""
    return sha256(owner.encode()).hexdigest()[:32]
