"""Chats that this replica has written lately: their next messages get a position without a read of rows."""

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from turnstream.domain.chats import Chat
from turnstream.domain.turns import Turn
from turnstream.storage.chats.exchanges import Exchange, Position, Target
from turnstream.storage.rows import to_json

_MOST = 1_000  # chats
_LONGEST = 20_000  # characters of a chat's system prompt and settings: longer ones are read


class RecentChats:
    """The state of the chats after this replica's last writes. A message to such a chat gets its position without a
    read of rows; the statement that writes the message compares the state with the rows. `ended` returns a turn that
    has ended on this replica, or None.
    """

    def __init__(self, ended: Callable[[UUID], Turn | None]) -> None:
        self._ended = ended
        self._chats: dict[UUID, tuple[Chat, UUID | None]] = {}

    def keep(self, chat: Chat, exchange: Exchange | None = None) -> None:
        """`chat` is new, or was read before the write of the `exchange`."""
        newest = None
        if exchange is not None:
            answer = exchange.assistant_turn
            assert answer.created_at is not None
            newest, chat = answer.id, replace(chat, updated_at=answer.created_at)  # both have the same time in the rows
        if len(chat.system_prompt or "") + len(to_json(chat.settings)) > _LONGEST:
            return
        self._chats[chat.id] = chat, newest
        if len(self._chats) > _MOST:
            del self._chats[next(iter(self._chats))]

    def take(self, target: Target) -> Position | None:
        """The position, if known and not behind an open turn. Each position is returned once, because a message follows
        there. None for a message that may steer: another replica may have an open turn for it, and the message then
        needs no answer.
        """
        chat, newest = self._chats.get(target.chat, (None, None))
        if chat is None or chat.owner != target.owner or target.parent != "newest" or target.on_busy == "steer":
            return None
        del self._chats[target.chat]
        before = None if newest is None else self._ended(newest)
        if newest is not None and before is None:
            return None
        return Position(chat, before)
