"""Changes of one chat, for readers that know all of its turns up to a place.

The place of a turn is its time of creation: twice the microseconds since 1970, and one more for an answer. The turns of
a chat are made one after another, under its lock and by its clock (`chats.updated_at`). So no turn appears later below
a place that a reader has seen. The deletion of turns has a place too, by the same clock.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from turnstream.domain.chats import Chat
from turnstream.domain.turns import Turn
from turnstream.storage.chats.chats import GET_CHAT, chat_from
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import OPEN_STATUSES

PLACE = "2 * CAST(extract(epoch FROM created_at) * 1000000 AS bigint) + CAST(role = 'assistant' AS int)"
_DELETION = "2 * CAST(extract(epoch FROM deleted_at) * 1000000 AS bigint)"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LAST_PLACE = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) * 2

# Of deletions only those of turns that a reader may have seen.
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
# The turns at these places, and those that are open.
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
GET_LAST_AND_OPEN = Statement(
    f"""
    SELECT id, {PLACE} AS place, true AS open FROM turns WHERE chat_id = :chat AND status IN {OPEN_STATUSES}
    UNION ALL
    SELECT id, {PLACE}, false FROM turns
    WHERE chat_id = :chat AND status NOT IN {OPEN_STATUSES}
      AND created_at = (SELECT created_at FROM turns WHERE chat_id = :chat ORDER BY created_at DESC LIMIT 1)
    """
)
GET_NEWEST_ANSWER = Statement(
    "SELECT id FROM turns WHERE chat_id = :chat AND parent_id = :question ORDER BY created_at DESC, id DESC LIMIT 1"
)
GET_TIMES = Statement("SELECT id, updated_at FROM chats WHERE id = ANY(CAST(:chats AS uuid[]))")


@dataclass(frozen=True, slots=True)
class DeletedTurns:
    """Turns that one transaction deleted."""

    turns: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class ChatUpdate:
    """The chat as it is now, and its new turns and deletions with their places, the oldest first."""

    chat: Chat
    news: Sequence[tuple[int, UUID | DeletedTurns]]


@dataclass(frozen=True, slots=True)
class ChatState:
    """The newest turn of a chat, its place (0 where there is none), and the open turns with their places."""

    newest: UUID | None
    last: int
    open: Mapping[UUID, int]


class ChatUpdates:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def after(self, owner: str, chat: UUID, place: int, limit: int) -> ChatUpdate | None:
        """The changes after `place`, at most `limit` turns and deletions. None when there is no such chat."""
        row = await self._database.row(GET_CHAT, owner=owner, chat=chat)
        if row is None:
            return None
        rows = await self._database.rows(GET_NEWS, chat=chat, since=_time_of(place), place=place, limit=limit)
        news = [(new["place"], DeletedTurns(tuple(new["deleted"])) if new["deleted"] else new["id"]) for new in rows]
        return ChatUpdate(chat_from(row), news)

    async def turns_known(self, chat: UUID, last: int, open: Collection[int]) -> Mapping[int, UUID | None] | None:
        """The turns at the places `open`, None for one that was deleted. Returns None if the chat never had exactly
        these open turns up to the place `last`: it is another chat, or a database was restored.
        """
        places = [*open, last]
        times = list(map(_time_of, places))
        rows = await self._database.rows(GET_TURNS_AT, chat=chat, times=times, places=places)
        found = {row["place"]: row["id"] for row in rows}
        ended = any(row["open"] and row["place"] <= last and row["place"] not in open for row in rows)
        if ended or not found.keys() >= {*open, last} - {0}:
            return None
        return {place: found[place] for place in open}

    async def state(self, chat: UUID) -> ChatState:
        rows = await self._database.rows(GET_LAST_AND_OPEN, chat=chat)
        newest = max(rows, key=lambda row: row["place"], default=None)
        last = newest["place"] if newest else 0
        open = {row["id"]: row["place"] for row in rows if row["open"]}
        return ChatState(newest["id"] if newest else None, last, open)

    async def newest_answer(self, chat: UUID, question: UUID) -> UUID | None:
        """The newest turn that answers the user turn `question`."""
        row = await self._database.row(GET_NEWEST_ANSWER, chat=chat, question=question)
        return row["id"] if row else None

    async def times(self, chats: Sequence[UUID]) -> Mapping[UUID, datetime]:
        """The time of the last change of each chat. A deleted chat is absent."""
        rows = await self._database.rows(GET_TIMES, chats=chats)
        return {row["id"]: row["updated_at"] for row in rows}


def place_of(turn: Turn) -> int:
    assert turn.created_at is not None
    return (turn.created_at - _EPOCH) // timedelta(microseconds=1) * 2 + (turn.role == "assistant")


def is_answer(place: int) -> bool:
    return place % 2 == 1


def _time_of(place: int) -> datetime:
    return _EPOCH + timedelta(microseconds=place // 2)
