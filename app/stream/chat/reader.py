"""The reader of a chat: its news as the rows tell them, and the events of all its turns that have not ended."""

from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import NamedTuple
from uuid import UUID

from app.domain.chats import Chat
from app.domain.cursor import START, Cursor
from app.domain.errors import NotFound
from app.domain.events import Event, Notice, TurnEnd
from app.domain.log import resume
from app.domain.turns import Turn
from app.storage.chat_changes import ChatChanges
from app.storage.database import retry_while_unavailable
from app.storage.turns import Turns
from app.stream.chat.cursor import MOST_OPEN, ChatCursor, digest_of
from app.stream.chat.wakeups import ChatWakeups
from app.stream.directory import Directory
from app.stream.reader import PORTION, TurnReader
from app.stream.wakeup import wait_for_any

_BATCH = 50


class OfTurn(NamedTuple):
    """An event or a notice of one of the chat's turns."""

    turn: UUID
    event: Event | Notice


# The chat as it is now, None once it was deleted; a turn that the client has not heard of; what happens in a turn.
Told = Chat | Turn | OfTurn | None
EncodeTold = Callable[[Told, ChatCursor | None], bytes]


class Sources(NamedTuple):
    news: ChatChanges
    turns: Turns
    directory: Directory
    wakeups: ChatWakeups


class ChatReader:
    """One reader of one chat, from `cursor` on, which it moves."""

    def __init__(self, sources: Sources, owner: str, chat: UUID, cursor: ChatCursor, encode: EncodeTold) -> None:
        self._news, self._turns, self._directory, wakeups = sources
        self._wakeup = wakeups.wakeup(chat)
        self._owner = owner
        self._chat = chat
        self._cursor = cursor
        self._encode = encode
        self._followers: list[TurnReader] = []
        self._seen = self._wakeup.number
        self._more = True
        self._gone = False
        self._first = b""

    async def open(self) -> None:
        """Finds what the cursor names. Raises ValueError for one that is not of this chat."""
        cursor = self._cursor
        found = await self._news.answers_at(self._chat, list(cursor.open))
        if cursor.place > await self._news.last_place(self._chat) or found.keys() != cursor.open.keys():
            raise ValueError("no event of this chat's stream had this id")
        for place, position in list(cursor.open.items()):
            turn = await self._turns.get(self._owner, self._chat, found[place])
            if position is None:
                self._first += self._tell_turn(turn, place)
            else:
                self._follow(turn, place, position)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """What the client does not have, for ever, or until the chat is deleted."""
        if self._first:
            yield self._first
        while not self._gone:
            if self._due:
                if frames := await self._look_for_news():
                    yield frames
                continue
            idle = True
            for follower in list(self._followers):
                frames = follower.look()
                idle = idle and not frames and not follower.done and follower.fed
                if frames:
                    yield frames
                elif follower.done:
                    self._followers.remove(follower)
                elif not follower.fed:
                    await follower.renew()
            if idle:  # and nothing was awaited since the looks
                await wait_for_any(self._wakeup, *(follower.view.wakeup for follower in self._followers))

    @property
    def _due(self) -> bool:
        """Whether to look for news."""
        return (self._more or self._wakeup.number != self._seen) and self._has_room

    @property
    def _has_room(self) -> bool:
        """What has ended is told to its end before the next is taken up, so that only one such turn is held."""
        return len(self._followers) < MOST_OPEN and not any(each.view.ended for each in self._followers)

    async def _look_for_news(self) -> bytes:
        self._seen = self._wakeup.number
        news = await retry_while_unavailable(
            partial(self._news.after, self._owner, self._chat, self._cursor.place, _BATCH)
        )
        if news is None:
            self._gone = True
            return self._encode(None, None)
        told, self._more = self._tell_changes(news.chat), len(news.turns) == _BATCH
        for place, id in news.turns:
            if len(told) > PORTION or not self._has_room:
                self._more = True
                break
            try:
                turn = await self._turn(id)
            except NotFound:  # so the chat was deleted
                self._more = True
                break
            self._cursor.place = place
            told += self._tell_turn(turn, place)
        return told

    async def _turn(self, id: UUID) -> Turn:
        here = self._directory.running_for(self._owner, self._chat, id)
        return (
            here.turn if here else await retry_while_unavailable(partial(self._turns.get, self._owner, self._chat, id))
        )

    def _tell_changes(self, chat: Chat) -> bytes:
        if self._cursor.digest == (digest := digest_of(chat)):
            return b""
        self._cursor.digest = digest
        return self._encode(chat, self._cursor)

    def _tell_turn(self, turn: Turn, place: int) -> bytes:
        if turn.role == "assistant":
            self._follow(turn, place, START)
        return self._encode(turn, self._cursor)

    def _follow(self, turn: Turn, place: int, position: Cursor) -> None:
        """From `position` on. Raises ValueError for one of an attempt that the turn has not had."""

        def encode(event: Event | Notice, cursor: Cursor | None) -> bytes:
            if cursor is None:
                return self._encode(OfTurn(turn.id, event), None)
            if isinstance(event, TurnEnd):
                del self._cursor.open[place]
            else:
                self._cursor.open[place] = cursor
            return self._encode(OfTurn(turn.id, event), self._cursor)

        self._cursor.open[place] = position
        view = self._directory.view(turn)
        resume(view, position)
        load = partial(self._turns.get, self._owner, self._chat, turn.id)
        self._followers.append(TurnReader(self._directory, view, load, position, encode))
