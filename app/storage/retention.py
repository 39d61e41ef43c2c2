"""Retention: the removal of rows by their age, in small steps, and the replica that does it."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, Literal
from uuid import UUID

from app.kit.clock import CLOCK
from app.storage.database import LONG, Database, Statement

Aged = Literal["uploads", "idempotency_keys", "webhooks", "waiting_webhooks"]


def _delete_aged(table: str, id: str, since: str = "created_at") -> Statement:
    """Ids begin with the time of their creation, so an index finds what is old. The age of a row counts from `since`,
    which may be later: an upload was sent again, a request came to an older turn, a webhook was delivered.
    """
    return Statement(
        f"""
        DELETE FROM {table} WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM {table}
            WHERE {id} < :before AND {since} < now() - CAST(:age AS interval) ORDER BY {id} LIMIT :most
        ))
        RETURNING {id}
        """,
        timeout=LONG,
    )


# One replica has a sweep until its time comes again. While it works it renews its lease; one that dies is replaced.
CLAIM_SWEEP = Statement(
    """
    INSERT INTO sweeps (name, due_at) VALUES (:name, now() + :lease)
    ON CONFLICT (name) DO UPDATE SET due_at = EXCLUDED.due_at WHERE sweeps.due_at <= now()
    RETURNING name
    """
)
POSTPONE_SWEEP = Statement("UPDATE sweeps SET due_at = now() + :wait WHERE name = :name RETURNING name")

# Owner by owner, since the index of chats begins with the owner: another index would cost every message. An owner
# without old chats has one row with a null. A chat goes when it was changed last so long ago and no turn of it is at
# work; a turn that waits for a person does not keep it.
GET_OLD_CHATS = Statement(
    """
    WITH RECURSIVE page (owner, number) AS (
        (SELECT owner, 1 FROM chats WHERE owner >= :begin AND (owner > :begin OR :again) ORDER BY owner LIMIT 1)
        UNION ALL
        SELECT next.owner, number + 1 FROM page CROSS JOIN LATERAL (
            SELECT owner FROM chats WHERE owner > page.owner ORDER BY owner LIMIT 1
        ) AS next
        WHERE number < :owners
    )
    SELECT page.owner, old.id FROM page LEFT JOIN LATERAL (
        SELECT id FROM chats
        WHERE chats.owner = page.owner AND updated_at < now() - CAST(:age AS interval) AND NOT EXISTS (
            SELECT FROM turns WHERE chat_id = chats.id AND status IN ('queued', 'running')
        )
        ORDER BY updated_at LIMIT :most
    ) AS old ON true
    ORDER BY page.owner
    """,
    timeout=LONG,
)
# Asked again: a chat may have been used meanwhile.
DELETE_OLD_CHATS = Statement(
    """
    DELETE FROM chats WHERE id IN (
        SELECT id FROM chats
        WHERE id = ANY(CAST(:chats AS uuid[])) AND updated_at < now() - CAST(:age AS interval) AND NOT EXISTS (
            SELECT FROM turns WHERE chat_id = chats.id AND status IN ('queued', 'running')
        )
        FOR UPDATE SKIP LOCKED
    )
    RETURNING id
    """,
    timeout=LONG,
)
_FINISHED: Final = "coalesce(delivered_at, given_up_at)"
DELETE_AGED: Final[Mapping[Aged, Statement]] = {
    "uploads": _delete_aged("uploads", "id"),
    "idempotency_keys": _delete_aged("idempotency_keys", "turn_id"),
    "webhooks": _delete_aged("webhooks", "turn_id", _FINISHED),
    "waiting_webhooks": _delete_aged("waiting_webhooks", "turn_id", _FINISHED),
}
GET_PRESENT_TURNS = Statement("SELECT id FROM turns WHERE id = ANY(CAST(:turns AS uuid[]))", timeout=LONG)

_STEP = 100  # rows, or owners that are looked at
_STEP_CHATS = 10  # of an owner; each may have thousands of turns


class Sweeps:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, name: str, lease: float) -> bool:
        """Whether the sweep is due and now this replica's, for `lease` seconds."""
        return await self._database.row(CLAIM_SWEEP, name=name, lease=timedelta(seconds=lease)) is not None

    async def postpone(self, name: str, seconds: float) -> None:
        await self._database.row(POSTPONE_SWEEP, name=name, wait=timedelta(seconds=seconds))


class OldChats:
    """Deletes chats whose last change is more than `days` ago."""

    def __init__(self, database: Database, days: float) -> None:
        self._database = database
        self._age = timedelta(days=days)
        # The owner to go on behind, or with.
        self._begin, self._again = "", True

    async def step(self) -> int | None:
        """How many chats it has deleted; None when it has looked at all owners, and begins anew."""
        rows = await self._database.rows(
            GET_OLD_CHATS, begin=self._begin, again=self._again, owners=_STEP, age=self._age, most=_STEP_CHATS
        )
        if not rows:
            self._begin, self._again = "", True
            return None
        chats = [row["id"] for row in rows if row["id"] is not None]
        count = 0
        for start in range(0, len(chats), _STEP_CHATS):
            some = chats[start : start + _STEP_CHATS]
            count += len(await self._database.rows(DELETE_OLD_CHATS, chats=some, age=self._age))
        # Behind the last owner, or from the first one on who may have more of them.
        owners = [row["owner"] for row in rows]
        full = [owner for owner in dict.fromkeys(owners) if owners.count(owner) == _STEP_CHATS and count]
        self._begin, self._again = (full[0], True) if full else (owners[-1], False)
        return count


class AgedRows:
    """Deletes rows of a table that are older than `days`."""

    def __init__(self, database: Database, table: Aged, days: float) -> None:
        self._database = database
        self._table = table
        self._age = timedelta(days=days)

    async def step(self) -> int | None:
        """How many rows it has deleted; None where none was old."""
        first = int((CLOCK.now() - self._age).timestamp() * 1000)
        before = UUID(int=max(0, first) << 80)
        rows = await self._database.rows(DELETE_AGED[self._table], before=before, age=self._age, most=_STEP)
        return len(rows) or None


async def present_turns(database: Database, turns: Sequence[UUID]) -> set[UUID]:
    """Those of the turns that there are."""
    return {row["id"] for row in await database.rows(GET_PRESENT_TURNS, turns=turns)}
