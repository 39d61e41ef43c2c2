"""Reads the changes of one chat, for readers that have all turns up to a place.

The place of a turn is its time of creation: twice the microseconds since 1970, plus one for an answer. The lock and the
clock of the chat (`chats.updated_at`) order the creations of its turns. So no new turn gets a place below a place that
a reader has seen. Deletions of turns are timed by the same clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from turnstream.domain.turns import Turn
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import OPEN_STATUSES

PLACE = "2 * CAST(extract(epoch FROM created_at) * 1000000 AS bigint) + CAST(role = 'assistant' AS int)"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LAST_PLACE = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) * 2

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


@dataclass(frozen=True, slots=True)
class ChatState:
    """The newest turn of a chat, its place (0 without turns), and the open turns with their places."""

    newest: UUID | None
    last: int
    open: Mapping[UUID, int]


class ChatUpdates:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def state(self, chat: UUID) -> ChatState:
        rows = await self._database.rows(GET_LAST_AND_OPEN, chat=chat)
        newest = max(rows, key=lambda row: row["place"], default=None)
        last = newest["place"] if newest else 0
        open = {row["id"]: row["place"] for row in rows if row["open"]}
        return ChatState(newest["id"] if newest else None, last, open)

    async def newest_answer(self, chat: UUID, question: UUID) -> UUID | None:
        """Returns the newest answer to the user turn `question`."""
        row = await self._database.row(GET_NEWEST_ANSWER, chat=chat, question=question)
        return row["id"] if row else None


def place_of(turn: Turn) -> int:
    assert turn.created_at is not None
    return (turn.created_at - EPOCH) // timedelta(microseconds=1) * 2 + (turn.role == "assistant")
