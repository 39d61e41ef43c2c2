"""Chats that this replica has written lately. The next message of such a chat gets its position without a read."""

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from turnstream.domain.chats import Chat
from turnstream.domain.turns import Turn
from turnstream.storage.chats.exchanges import Exchange, Position, Target
from turnstream.storage.rows import to_json

_MOST = 1_000  # chats
_LONGEST = 20_000  # characters of a chat's system prompt and settings: a chat with more is not kept


class RecentChats:
    """Keeps the state of each chat after this replica's last write. A message to such a chat gets its position without
    a read of rows; the statement that writes the message compares the state with the rows. `ended` returns a turn that
    has ended on this replica, or None for any other turn.
    """

    def __init__(self, ended: Callable[[UUID], Turn | None]) -> None:
        self._ended = ended
        self._chats: dict[UUID, tuple[Chat, UUID | None]] = {}

    def keep(self, chat: Chat, exchange: Exchange | None = None) -> None:
        """Remembers `chat`, which is new, or was read before the write of `exchange`."""
        newest = None
        if exchange is not None:
            answer = exchange.assistant_turn
            assert answer.created_at is not None
            newest, chat = answer.id, replace(chat, updated_at=answer.created_at)  # their rows have the same time
        if len(chat.system_prompt or "") + len(to_json(chat.settings)) > _LONGEST:
            return
        self._chats[chat.id] = chat, newest
        if len(self._chats) > _MOST:
            del self._chats[next(iter(self._chats))]

    def take(self, target: Target) -> Position | None:
        """Returns the position of a message, and forgets it, because the message changes the position. None if the
        position is unknown or follows an open turn. None also for a message that may steer: another replica may have an
        open turn that receives the message, and then the message needs no answer.
        """
        chat, newest = self._chats.get(target.chat, (None, None))
        if chat is None or chat.owner != target.owner or target.parent != "newest" or target.on_busy == "steer":
            return None
        del self._chats[target.chat]
        before = None if newest is None else self._ended(newest)
        if newest is not None and before is None:
            return None
        return Position(chat, before)
