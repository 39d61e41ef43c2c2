"""The queue of turns and the replicas that serve it."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from app.storage.database import Database, Statement

CLAIM_TURNS = Statement(
    """
    UPDATE turns
    SET status = 'running', attempt = attempt + 1, replica = :replica, started_at = coalesce(started_at, now())
    WHERE id IN (
        SELECT id FROM turns WHERE status = 'queued' ORDER BY id FOR UPDATE SKIP LOCKED LIMIT :limit
    )
    RETURNING id
    """
)
RENEW_LEASE = Statement(
    """
    INSERT INTO replicas (id, address, lease_until) VALUES (:replica, :address, now() + :lease)
    ON CONFLICT (id) DO UPDATE SET lease_until = EXCLUDED.lease_until
    RETURNING id
    """
)
END_LEASE = Statement("DELETE FROM replicas WHERE id = :replica RETURNING id")
REPLACE_AT_ADDRESS = Statement("DELETE FROM replicas WHERE address = :address AND id <> :replica RETURNING id")
# A lapsed lease and a replica that is gone are one case. The attempt stays: the next claim raises it, which fences off
# an owner that is only slow.
REQUEUE_LAPSED = Statement(
    """
    WITH lapsed AS (DELETE FROM replicas WHERE lease_until < now() AND id <> :replica)
    UPDATE turns SET status = 'queued', replica = NULL, recoveries = recoveries + 1
    WHERE status = 'running'
      AND NOT EXISTS (SELECT FROM replicas WHERE replicas.id = turns.replica AND lease_until >= now())
    RETURNING id
    """
)


class Queue:
    def __init__(self, database: Database, replica: UUID, address: str) -> None:
        self._database = database
        self._replica = replica
        self._address = address

    async def claim(self, limit: int) -> Sequence[UUID]:
        """Takes up to `limit` queued turns, oldest first, for this replica."""
        rows = await self._database.rows(CLAIM_TURNS, replica=self._replica, limit=limit)
        return sorted(row["id"] for row in rows)

    async def take_place(self, seconds: float) -> None:
        """Announces this replica. One that had the same address before is gone, or we could not listen there."""
        await self._database.row(REPLACE_AT_ADDRESS, replica=self._replica, address=self._address)
        await self.renew_lease(seconds)
        await self.requeue_lapsed()

    async def renew_lease(self, seconds: float) -> None:
        lease = timedelta(seconds=seconds)
        await self._database.row(RENEW_LEASE, replica=self._replica, address=self._address, lease=lease)

    async def leave(self) -> None:
        await self._database.row(END_LEASE, replica=self._replica)

    async def requeue_lapsed(self) -> Sequence[UUID]:
        """Puts the turns of replicas whose lease has lapsed back into the queue."""
        return [row["id"] for row in await self._database.rows(REQUEUE_LAPSED, replica=self._replica)]
