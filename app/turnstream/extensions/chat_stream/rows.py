"""Reads the changes of a chat after a place (turnstream.storage.chats.chat_changes), for a reader that has all changes
up to this place.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from turnstream.domain.chats import Chat
from turnstream.storage.chats.chat_changes import EPOCH, PLACE
from turnstream.storage.chats.chats import GET_CHAT, chat_from
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import OPEN_STATUSES

_DELETION = "2 * CAST(extract(epoch FROM deleted_at) * 1000000 AS bigint)"

# Returns new turns, and those deletions whose turns the reader may have seen.
GET_NEWS = Statement(
    f"""
    (
        SELECT id, {PLACE} AS place, NULL AS deleted FROM turns
        WHERE chat_id = :chat AND created_at >= :since AND {PLACE} > :place
        ORDER BY created_at, role DESC LIMIT :limit
    )
    UNION ALL
    SELECT NULL, {_DELETION}, array_agg(turn_id ORDER BY place) FROM deleted_turns
    WHERE chat_id = :chat AND deleted_at >= :since AND {_DELETION} > :place AND place <= :place
    GROUP BY deleted_at
    ORDER BY place LIMIT :limit
    """
)
# Returns the turns and deletions at these places, and all open turns.
GET_TURNS_AT = Statement(
    f"""
    SELECT id, {PLACE} AS place, status IN {OPEN_STATUSES} AS open FROM turns
    WHERE chat_id = :chat AND created_at = ANY(CAST(:times AS timestamptz[]))
    UNION
    SELECT id, {PLACE}, true FROM turns WHERE chat_id = :chat AND status IN {OPEN_STATUSES}
    UNION ALL
    SELECT NULL, place, false FROM deleted_turns WHERE chat_id = :chat AND place = ANY(CAST(:places AS bigint[]))
    UNION ALL
    SELECT NULL, {_DELETION}, false FROM deleted_turns
    WHERE chat_id = :chat AND deleted_at = ANY(CAST(:times AS timestamptz[]))
    """
)
GET_TIMES = Statement("SELECT id, updated_at FROM chats WHERE id = ANY(CAST(:chats AS uuid[]))")


@dataclass(frozen=True, slots=True)
class DeletedTurns:
    """The turns that one transaction deleted."""

    turns: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class ChatUpdate:
    """The chat as it is now, with its new turns and its deletions. Each has its place, and the oldest comes first."""

    chat: Chat
    news: Sequence[tuple[int, UUID | DeletedTurns]]


class ChatNews:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def after(self, owner: str, chat: UUID, place: int, limit: int) -> ChatUpdate | None:
        """Returns the changes after `place`: at most `limit` turns and deletions. Returns None if the chat does not
        exist.
        """
        row = await self._database.row(GET_CHAT, owner=owner, chat=chat)
        if row is None:
            return None
        rows = await self._database.rows(GET_NEWS, chat=chat, since=_time_of(place), place=place, limit=limit)
        news = [(new["place"], DeletedTurns(tuple(new["deleted"])) if new["deleted"] else new["id"]) for new in rows]
        return ChatUpdate(chat_from(row), news)

    async def turns_known(self, chat: UUID, last: int, open: Collection[int]) -> Mapping[int, UUID | None] | None:
        """Returns the turns at the places `open`, with None for each deleted turn. Returns None if these were never
        exactly the open turns of the chat up to the place `last`: then the cursor belongs to another chat, or the
        database was restored.
        """
        places = [*open, last]
        times = list(map(_time_of, places))
        rows = await self._database.rows(GET_TURNS_AT, chat=chat, times=times, places=places)
        found = {row["place"]: row["id"] for row in rows}
        ended = any(row["open"] and row["place"] <= last and row["place"] not in open for row in rows)
        if ended or not found.keys() >= {*open, last} - {0}:
            return None
        return {place: found[place] for place in open}

    async def times(self, chats: Sequence[UUID]) -> Mapping[UUID, datetime]:
        """Returns the time of each chat's last change. A deleted chat is absent."""
        rows = await self._database.rows(GET_TIMES, chats=chats)
        return {row["id"]: row["updated_at"] for row in rows}


def is_answer(place: int) -> bool:
    return place % 2 == 1


def _time_of(place: int) -> datetime:
    return EPOCH + timedelta(microseconds=place // 2)
