"""Deletes a turn and its descendants."""

from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

from turnstream.domain.errors import NotFound
from turnstream.storage.chats.chat_changes import PLACE
from turnstream.storage.chats.exchanges import TICK, Exchanges
from turnstream.storage.database import Database, Statement

# Most turns that one transaction deletes, so that the chat is not locked for long.
_BATCH = 200
# If the user turn before the answer has no other answer, it is deleted too, because no turn could follow it.
GET_ROOT = Statement(
    """
    SELECT CASE WHEN role = 'assistant' AND NOT EXISTS (
        SELECT FROM turns AS other
        WHERE other.chat_id = :chat AND other.parent_id = turns.parent_id AND other.id <> turns.id
    ) THEN parent_id ELSE id END AS id
    FROM turns WHERE id = :turn AND chat_id = :chat
    """
)
# The turns farthest from the root are deleted first, so that no turn ever lacks its parent.
DELETE_LAST = Statement(
    f"""
    WITH RECURSIVE below AS (
        SELECT id, 0 AS depth FROM turns WHERE id = :turn AND chat_id = :chat
        UNION ALL
        SELECT turns.id, depth + 1 FROM turns JOIN below ON turns.parent_id = below.id AND turns.chat_id = :chat
    ), gone AS (
        DELETE FROM turns WHERE id IN (SELECT id FROM below ORDER BY depth DESC, id LIMIT :most)
        RETURNING id, status, {PLACE} AS place
    ), touched AS (
        UPDATE chats SET {TICK} WHERE id = :chat AND EXISTS (SELECT FROM gone) RETURNING updated_at
    ), noted AS (
        INSERT INTO deleted_turns (turn_id, chat_id, place, deleted_at)
        SELECT id, :chat, place, updated_at FROM gone, touched
    )
    SELECT id, status = 'running' AS running FROM gone
    """
)


class Branches:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._exchanges = Exchanges(database)

    async def delete(self, owner: str, chat: UUID, turn: UUID) -> AsyncGenerator[tuple[int, Sequence[UUID]], None]:
        """Deletes a turn and its descendants. Also deletes the user turn before an answer, if that user turn has no
        other answer. After each transaction, yields the number of deleted turns, and the ids of the deleted turns that
        were running. Raises NotFound.
        """
        root: UUID | None = None
        count = _BATCH
        while count == _BATCH:
            async with self._exchanges.locked(owner, chat) as (connection, _):
                if root is None:
                    found = await connection.row(GET_ROOT, chat=chat, turn=turn)
                    if found is None:
                        raise NotFound(f"There is no turn {turn} in chat {chat}.")
                    root = found["id"]
                rows = await connection.rows(DELETE_LAST, chat=chat, turn=root, most=_BATCH)
            count = len(rows)
            yield count, [row["id"] for row in rows if row["running"]]
