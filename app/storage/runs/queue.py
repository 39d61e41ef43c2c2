"""The queue of turns, and the replicas that serve it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from app.domain.errors import StorageError
from app.storage.database import Database, Statement
from app.storage.rows import OPEN_STATUSES
from app.storage.runs.session import CHANNEL

# A turn that was enqueued behind an open one is not claimed before that one has ended.
CLAIM_TURNS = Statement(
    f"""
    UPDATE turns
    SET status = 'running', attempt = attempt + 1, replica = :replica, started_at = coalesce(started_at, now())
    WHERE id IN (
        SELECT id FROM turns AS next
        WHERE status = 'queued' AND NOT EXISTS (
            SELECT FROM turns AS question JOIN turns AS before ON before.id = question.parent_id
            WHERE question.id = next.parent_id AND before.status IN {OPEN_STATUSES}
        )
        ORDER BY id FOR UPDATE SKIP LOCKED LIMIT :limit
    )
    RETURNING id
    """
)
GET_CLAIMED = Statement("SELECT id, cancel_requested FROM turns WHERE replica = :replica AND status = 'running'")
RENEW_LEASE = Statement(
    """
    INSERT INTO replicas (id, address, session, lease_until) VALUES (:replica, :address, :session, now() + :lease)
    ON CONFLICT (id) DO UPDATE SET lease_until = EXCLUDED.lease_until
    RETURNING id
    """
)
GET_PEERS = Statement(
    """
    SELECT id, lease_until < now() AS lapsed, address = :address AS replaced,
           session IN (
               SELECT classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted
           ) AS connected
    FROM replicas WHERE id <> :replica
    """
)
# The attempt stays: the next claim raises it, which fences off an owner that is only slow.
TAKE_OVER = Statement(
    """
    WITH gone AS (
        DELETE FROM replicas WHERE id = ANY(CAST(:gone AS uuid[]))
    )
    UPDATE turns SET status = 'queued', replica = NULL, recoveries = recoveries + 1
    WHERE status = 'running'
      AND (replica = ANY(CAST(:gone AS uuid[])) OR NOT EXISTS (SELECT FROM replicas WHERE id = turns.replica))
    RETURNING id
    """
)
LEAVE = Statement("DELETE FROM replicas WHERE id = :replica RETURNING id")
NOTIFY = Statement("SELECT pg_notify(:channel, :payload)")


@dataclass(frozen=True, slots=True)
class Peer:
    """Another replica. `connected`: its session is alive. `lapsed`: its lease has expired. `replaced`: it had the
    address of this one, so it is gone.
    """

    id: UUID
    connected: bool
    lapsed: bool
    replaced: bool


class Queue:
    """The queue as one replica uses it. `session` is the key of this replica's advisory lock
    (app.storage.runs.session).
    """

    def __init__(self, database: Database, replica: UUID, address: str, session: int) -> None:
        self._database = database
        self.replica = replica
        self._address = address
        self._session = session

    async def claim(self, limit: int) -> Sequence[UUID]:
        """Claims up to `limit` queued turns for this replica, oldest first."""
        rows = await self._database.rows(CLAIM_TURNS, replica=self.replica, limit=limit)
        return sorted(row["id"] for row in rows)

    async def claimed(self) -> Mapping[UUID, bool]:
        """The turns that this replica owns by their rows; true for those whose cancellation is requested."""
        rows = await self._database.rows(GET_CLAIMED, replica=self.replica)
        return {row["id"]: row["cancel_requested"] for row in rows}

    async def renew_lease(self, seconds: float) -> None:
        await self._database.row(
            RENEW_LEASE,
            replica=self.replica,
            address=self._address,
            session=self._session,
            lease=timedelta(seconds=seconds),
        )

    async def peers(self) -> Sequence[Peer]:
        rows = await self._database.rows(GET_PEERS, replica=self.replica, address=self._address)
        return [Peer(row["id"], row["connected"], row["lapsed"], row["replaced"]) for row in rows]

    async def take_over(self, gone: Sequence[UUID]) -> Sequence[UUID]:
        """Puts the running turns of these replicas, and of replicas without a row, back into the queue."""
        return [row["id"] for row in await self._database.rows(TAKE_OVER, gone=gone)]

    async def leave(self) -> None:
        """Deletes the row of this replica. A replica that cannot is detected by its expired lease."""
        with suppress(StorageError):
            await self._database.row(LEAVE, replica=self.replica)

    async def notify(self, payload: str) -> None:
        """Notifies every replica, this one too."""
        await self._database.row(NOTIFY, channel=CHANNEL, payload=payload)
