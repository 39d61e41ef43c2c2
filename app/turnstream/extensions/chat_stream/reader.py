"""Reads a chat for one client: changes of its rows, and the events of all its open turns."""

import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from uuid import UUID

from turnstream.domain.chats import Chat
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.errors import NotFound
from turnstream.domain.events import CAUGHT_UP, Event, Notice, TurnEnd
from turnstream.domain.turns import Turn
from turnstream.extensions.chat_stream.beginnings import StreamedTurns
from turnstream.extensions.chat_stream.cursor import MOST_OPEN, UNKNOWN_CURSOR, digest_of
from turnstream.extensions.chat_stream.rows import ChatNews, DeletedTurns, is_answer
from turnstream.extensions.chat_stream.wakeups import ChatWakeups
from turnstream.storage.chats.chat_changes import place_of
from turnstream.storage.database import retry_while_unavailable
from turnstream.storage.rows import to_json
from turnstream.stream.chat_cursor import ChatCursor
from turnstream.stream.directory import Directory
from turnstream.stream.reader import PORTION, TurnReader
from turnstream.stream.wakeup import wait_for_any

_BATCH = 50
# How many characters of each text of a user turn are read with the turn, and how many in each later portion of a longer
# text. A slow reader holds no more of a text in memory.
_BEGINNING = 8192
_TEXT_PORTION = 131_072
# A placeholder that marks, in an encoded frame, the place where the rest of a text belongs. No message can guess it.
_REST = secrets.token_hex(16)


class EventOfTurn(NamedTuple):
    """An event or a notice of one turn of the chat."""

    turn: UUID
    event: Event | Notice


# The items of a stream: the chat as it is now, or None after its deletion; a turn that is new to the client; deleted
# turns; an event of a turn; a notice about the chat or the stream.
ChatItem = Chat | Turn | DeletedTurns | EventOfTurn | Notice | None
EncodeItem = Callable[[ChatItem, ChatCursor | None], bytes]


class RestOfText(NamedTuple):
    """The part of a block's text that begins at `offset`. It is read only when it is due to be sent."""

    turn: UUID
    block: int
    offset: int


class Sources(NamedTuple):
    changes: ChatNews
    turns: StreamedTurns
    directory: Directory
    wakeups: ChatWakeups


class ChatReader:
    """Reads one chat for one client, from `cursor` on. The cursor is updated in place. If `caught_up` is true, a notice
    follows the stored events.
    """

    def __init__(
        self,
        sources: Sources,
        owner: str,
        chat: UUID,
        cursor: ChatCursor,
        encode: EncodeItem,
        *,
        caught_up: bool = False,
    ) -> None:
        self._changes, self._turns, self._directory, wakeups = sources
        self._wakeup = wakeups.wakeup(chat)
        self._owner = owner
        self._chat = chat
        self._cursor = cursor
        self._encode = encode
        self._marks_end = caught_up
        self._readers: dict[int, TurnReader] = {}  # each reader, by the `place` of its turn
        self._seen = self._wakeup.number  # the number of notifications before the last query
        self._more = True
        self._deleted = False
        self._first = b""
        self._unsent: deque[bytes | RestOfText] = deque()  # the rest of a frame that was begun

    async def open(self) -> None:
        """Loads the turns that the cursor names. Raises ValueError for a cursor of another chat."""
        cursor = self._cursor
        found = await self._changes.turns_known(self._chat, cursor.place, cursor.open)
        if found is None:
            raise ValueError(UNKNOWN_CURSOR)
        for place, position in list(cursor.open.items()):
            id, turn = found[place], None
            with suppress(NotFound):
                turn = None if id is None else await self._turns.get(self._owner, self._chat, id)
            if turn is None:  # the turn was deleted, which the first query of changes will detect
                del cursor.open[place]
            elif position is None:
                self._first += self._frames_of_turn(turn, place)
            else:
                self._follow(turn, place, position)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yields the frames for the client, until the generator is cancelled or the chat is deleted."""
        if self._first:
            yield self._first
        while not self._deleted:
            if (self._more or self._wakeup.number != self._seen) and self._has_room:
                if frames := await self._query_changes():
                    yield frames
                while self._unsent:
                    yield await self._next_piece()
                continue
            idle = True
            for place, reader in list(self._readers.items()):
                frames = reader.look()
                idle = idle and not frames and not reader.done and reader.fed
                if frames:
                    yield frames
                elif reader.done:
                    del self._readers[place]
                elif not reader.fed:
                    await reader.renew()
            if idle and self._marks_end and not self._more:
                self._marks_end = False
                yield self._encode(CAUGHT_UP, None)
            elif idle:  # no await since the reads, so no notification is missed
                await wait_for_any(self._wakeup, *(reader.view.wakeup for reader in self._readers.values()))

    @property
    def _has_room(self) -> bool:
        """Whether one more turn may be read. Before that, an ended turn is sent completely, so that at most one ended
        turn is in memory.
        """
        return len(self._readers) < MOST_OPEN and not any(reader.view.ended for reader in self._readers.values())

    async def _query_changes(self) -> bytes:
        is_notified = self._wakeup.number != self._seen
        self._seen = self._wakeup.number  # set first: a notification during the query then causes another query
        update = await retry_while_unavailable(
            partial(self._changes.after, self._owner, self._chat, self._cursor.place, _BATCH)
        )
        if update is None:
            self._deleted = True
            return self._encode(None, None)
        frames, self._more = b"", len(update.news) == _BATCH
        if self._cursor.digest != (digest := digest_of(update.chat)):
            self._cursor.digest = digest
            frames = self._encode(update.chat, self._cursor)
        if is_notified and not frames and not update.news:  # perhaps a queued message was sent or changed
            return self._encode(Notice("queue", {}), None)
        for place, new in update.news:
            if len(frames) > PORTION or not self._has_room:
                self._more = True
                break
            if isinstance(new, DeletedTurns):
                self._cursor.place = place
                self._forget(new)
                frames += self._encode(new, self._cursor)
                continue
            turn, cut = None, frozenset[int]()
            with suppress(NotFound):
                if here := self._directory.running_for(self._owner, self._chat, new):
                    turn = here.turn
                elif is_answer(place):
                    turn = await retry_while_unavailable(partial(self._turns.get, self._owner, self._chat, new))
                else:
                    turn, cut = await retry_while_unavailable(
                        partial(self._turns.beginning, self._owner, self._chat, new, _BEGINNING)
                    )
            # The turn was deleted meanwhile, or was moved to follow a turn that the client may lack. The next query
            # detects this change.
            if turn is None or place_of(turn) != place:
                self._more = True
                break
            self._cursor.place = place
            if cut:
                self._more = True
                return frames + self._begin(turn, cut)
            frames += self._frames_of_turn(turn, place)
        return frames

    def _begin(self, turn: Turn, cut: frozenset[int]) -> bytes:
        """Encodes a user turn in which the texts of the blocks `cut` are incomplete. Returns the start of the frame;
        `_unsent` gets the rest.
        """
        marked = [replace(block, text=block.text + _REST) if block.index in cut else block for block in turn.blocks]
        first, *others = self._encode(replace(turn, blocks=tuple(marked)), self._cursor).split(_REST.encode())
        for index, following in zip(sorted(cut), others, strict=True):
            self._unsent += (RestOfText(turn.id, index, _BEGINNING), following)
        return first

    async def _next_piece(self) -> bytes:
        piece = self._unsent.popleft()
        if isinstance(piece, bytes):
            return piece
        turn, block, offset = piece
        text = await retry_while_unavailable(partial(self._turns.portion, turn, block, offset, _TEXT_PORTION))
        if len(text) == _TEXT_PORTION:
            self._unsent.appendleft(RestOfText(turn, block, offset + _TEXT_PORTION))
        return to_json(text)[1:-1].encode()

    def _frames_of_turn(self, turn: Turn, place: int) -> bytes:
        if turn.role == "assistant":
            self._follow(turn, place, START)
        return self._encode(turn, self._cursor)

    def _follow(self, turn: Turn, place: int, position: Cursor) -> None:
        """Adds a reader that reads the turn from `position` on."""

        def encode(event: Event | Notice, cursor: Cursor | None) -> bytes:
            if cursor is None:
                return self._encode(EventOfTurn(turn.id, event), None)
            if isinstance(event, TurnEnd):
                del self._cursor.open[place]
            else:
                self._cursor.open[place] = cursor
            return self._encode(EventOfTurn(turn.id, event), self._cursor)

        self._cursor.open[place] = position
        view = self._directory.view(turn)
        load = partial(self._turns.get, self._owner, self._chat, turn.id)
        self._readers[place] = TurnReader(self._directory, view, load, position, encode)

    def _forget(self, deleted: DeletedTurns) -> None:
        gone = {place for place, reader in self._readers.items() if reader.view.turn.id in deleted.turns}
        self._readers = {place: reader for place, reader in self._readers.items() if place not in gone}
        self._cursor.open = {place: cursor for place, cursor in self._cursor.open.items() if place not in gone}
