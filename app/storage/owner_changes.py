"""Changes in the chats of one owner since a time of the database: the rows behind the owner's feed.

Rows carry the time of the statement that wrote them, and become visible later, when their transaction commits. A reader
therefore reads again what is up to OVERLAP old, and leaves out what it has already sent.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app.domain.chats import Chat
from app.domain.turns import DELETED, Status
from app.storage.chats import chat_from
from app.storage.database import LONG, Database, Statement
from app.storage.rows import OPEN_STATUSES, WAITS

# The longest time that is allowed to pass between the time in a row and its commit.
OVERLAP = timedelta(seconds=10)
# How long it is known that a chat was deleted. What is older is swept later, so that no reader misses a row.
DELETIONS_KEPT = timedelta(days=30)

# The join gives a row, and with it the time, also where no chat has changed. The time is that before the rows are read.
GET_CHANGED_CHATS = Statement(
    """
    SELECT now() AS seen_at, chats.* FROM (VALUES (1)) AS always
    LEFT JOIN chats ON owner = :owner AND updated_at > :since
    ORDER BY updated_at, id LIMIT CAST(:most AS int)
    """
)
# A client may choose the id of its chat, and so make one again that was deleted.
GET_DELETED_CHATS = Statement(
    """
    SELECT chat_id, deleted_at FROM deleted_chats
    WHERE owner = :owner AND deleted_at > :since AND NOT EXISTS (SELECT FROM chats WHERE id = chat_id)
    ORDER BY deleted_at, chat_id LIMIT CAST(:most AS int)
    """
)
# Most turns have no asks, which their rows say.
_OPEN_ASKS = f"""CASE WHEN asked > 0 THEN
        (SELECT count(*) FROM asks WHERE turn_id = turns.id AND {WAITS})
    ELSE 0 END AS waiting"""
# The ids of turns come from a cursor, which a client may have made up: the owner is checked. A deleted turn has ended.
# The place of an assistant turn is odd.
GET_CHANGED_TURNS = Statement(
    f"""
    SELECT turns.id, chat_id, status, stop_reason, {_OPEN_ASKS} FROM turns
    JOIN chats ON chats.id = chat_id AND owner = :owner
    WHERE role = 'assistant' AND turns.id = ANY(CAST(:turns AS uuid[]))
    UNION
    SELECT id, chat_id, status, stop_reason, {_OPEN_ASKS} FROM turns
    WHERE role = 'assistant' AND chat_id = ANY(CAST(:chats AS uuid[])) AND created_at > :since
    UNION
    SELECT turn_id, chat_id, 'cancelled', '{DELETED}', 0 FROM deleted_turns
    JOIN chats ON chats.id = chat_id AND owner = :owner
    WHERE place % 2 = 1 AND turn_id = ANY(CAST(:turns AS uuid[]))
    ORDER BY id LIMIT CAST(:most AS int)
    """
)
GET_OPEN_TURNS = Statement(
    f"""
    SELECT turns.id FROM turns JOIN chats ON chats.id = chat_id
    WHERE owner = :owner AND status IN {OPEN_STATUSES}
    """
)
GET_TIME = Statement("SELECT now() AS now")
SWEEP_DELETED_CHATS = Statement(
    "DELETE FROM deleted_chats WHERE deleted_at < now() - CAST(:kept AS interval) RETURNING chat_id",
    timeout=LONG,
)


@dataclass(frozen=True, slots=True)
class TurnStatus:
    """How far an assistant turn has come. `stop_reason` is that of one that has ended. `waiting` counts its calls that
    wait for a person.
    """

    id: UUID
    chat: UUID
    status: Status
    stop_reason: str | None
    waiting: int


@dataclass(frozen=True, slots=True)
class OwnerUpdate:
    """`deleted` has chats that are gone, with the time. Whatever was visible at `seen_at` is in it."""

    seen_at: datetime
    chats: Sequence[Chat]
    deleted: Sequence[tuple[UUID, datetime]]
    turns: Sequence[TurnStatus]


class OwnerChanges:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def now(self) -> datetime:
        """The time of the database."""
        row = await self._database.row(GET_TIME)
        assert row is not None
        now: datetime = row["now"]
        return now

    async def open_turns(self, owner: str) -> Sequence[UUID]:
        return [row["id"] for row in await self._database.rows(GET_OPEN_TURNS, owner=owner)]

    async def since(
        self, owner: str, since: datetime, turns: Collection[UUID], most: int | None = None
    ) -> OwnerUpdate | None:
        """Chats that were made, changed or deleted after `since`, the turns that were made in them since, and `turns`,
        each as it is now. None where there are more than `most` of one of these.
        """
        limit = None if most is None else most + 1
        rows = await self._database.rows(GET_CHANGED_CHATS, owner=owner, since=since, most=limit)
        chats = [chat_from(row) for row in rows if row["id"] is not None]
        deleted = await self._database.rows(GET_DELETED_CHATS, owner=owner, since=since, most=limit)
        changed = [chat.id for chat in chats]
        found = await self._database.rows(
            GET_CHANGED_TURNS,
            owner=owner,
            since=since,
            turns=list(turns),
            chats=changed,
            most=None if limit is None else limit + len(turns),
        )
        if most is not None and max(len(chats), len(deleted), len(found) - len(turns)) > most:
            return None
        gone = [(row["chat_id"], row["deleted_at"]) for row in deleted]
        statuses = [
            TurnStatus(row["id"], row["chat_id"], row["status"], row["stop_reason"], row["waiting"]) for row in found
        ]
        return OwnerUpdate(rows[0]["seen_at"], chats, gone, statuses)

    async def sweep(self) -> int:
        """Forgets old deletions. How many they were."""
        return len(await self._database.rows(SWEEP_DELETED_CHATS, kept=DELETIONS_KEPT + timedelta(days=1)))
