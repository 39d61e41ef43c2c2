"""The queue of turns, and the replicas that serve it."""

from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from uuid import UUID

from app.domain.errors import StorageError
from app.kit.clock import CLOCK
from app.storage.database import Database, Statement
from app.storage.rows import OPEN_STATUSES
from app.storage.runs import attempts
from app.storage.runs.attempts import NEXT_ATTEMPT
from app.storage.runs.journal import END_LOGS
from app.storage.runs.session import CHANNEL
from app.storage.standby import Renewal, Renewals
from app.storage.webhooks import WebhookKind

# The notifications between replicas. The ids that follow are of a turn, and for the last one of the replica it is for.
QUEUED = "queued"  # there may be a turn to claim
CANCEL = "cancel"
UPDATED = "told"  # the rows have an answer or words of a user; older replicas, which run beside, know this word
DRAIN = "drain"

# A turn that was enqueued behind an open one is not claimed before that one has ended, nor one of an owner who is held.
CLAIMABLE = f"""
    status = 'queued' AND NOT EXISTS (
        SELECT FROM turns AS question JOIN turns AS before ON before.id = question.parent_id
        WHERE question.id = next.parent_id AND before.status IN {OPEN_STATUSES}
    ) AND NOT EXISTS (
        SELECT FROM moves JOIN chats USING (owner) WHERE chats.id = next.chat_id AND held_until > now()
    )
"""
_CLAIM = f"""
    UPDATE turns
    SET status = 'running', attempt = {NEXT_ATTEMPT}, replica = :replica, started_at = coalesce(started_at, now())
    WHERE id IN (SELECT id FROM chosen)
    RETURNING id, created_at
"""
# By the time of the database: ids have the time of the replica that made them.
CLAIM_TURNS = Statement(
    f"""
    WITH chosen AS (
        SELECT id FROM turns AS next WHERE {CLAIMABLE}
        ORDER BY created_at, id FOR UPDATE SKIP LOCKED LIMIT :limit
    )
    {_CLAIM}
    """
)
# The owner with the fewest running turns comes first, so no owner waits behind all turns of another one. An index has
# the open turns by owner. Turns are read of as many owners as turns are claimed, and of each as many as may run.
# Replicas that claim at the same moment find the same turns, and pass over those of each other. The first turn in the
# queue is read in the order of an index: else a long queue makes the planner read the whole table for it.
CLAIM_TURNS_FAIRLY = Statement(
    f"""
    WITH first_queued AS (
        SELECT id FROM turns WHERE status = 'queued' ORDER BY created_at, id LIMIT 1
    ), shares AS (
        SELECT queue_owner AS owner, count(*) FILTER (WHERE status = 'running') AS running,
            min(created_at) FILTER (WHERE status = 'queued') AS oldest
        FROM turns
        WHERE status IN ('queued', 'running') AND (SELECT id FROM first_queued) IS NOT NULL
        GROUP BY queue_owner
    ), owners AS (
        SELECT owner, running, room FROM (
            SELECT owner, running, coalesce(running_turns, CAST(:most AS int)) - running AS room
            FROM shares LEFT JOIN accounts USING (owner) WHERE oldest IS NOT NULL ORDER BY running, oldest
        ) AS in_order, LATERAL (
            SELECT FROM turns AS next WHERE queue_owner = owner AND {CLAIMABLE} LIMIT 1
        ) AS any_turn
        WHERE room > 0 LIMIT :limit
    ), ranked AS (
        SELECT next.id, running + row_number() OVER (PARTITION BY owner ORDER BY next.created_at, next.id) AS rank
        FROM owners, LATERAL (
            SELECT id, created_at FROM turns AS next WHERE queue_owner = owner AND {CLAIMABLE}
            ORDER BY created_at, id LIMIT least(room, :limit)
        ) AS next
    ), chosen AS (
        SELECT turns.id FROM turns JOIN ranked USING (id)
        WHERE status = 'queued' ORDER BY rank, created_at, turns.id FOR UPDATE OF turns SKIP LOCKED LIMIT :limit
    )
    {_CLAIM}
    """
)
CLAIM_AGAIN = Statement(
    f"""
    UPDATE turns SET attempt = {NEXT_ATTEMPT}
    WHERE id = ANY(CAST(:turns AS uuid[])) AND replica = :replica AND status = 'running'
    RETURNING id
    """
)
# All of them, or those of owners who are held: nobody claims these before they are free, or in their new cell.
GIVE_BACK = Statement(
    """
    UPDATE turns SET status = 'queued', replica = NULL
    WHERE id = ANY(CAST(:turns AS uuid[])) AND replica = :replica AND status = 'running' AND (
        :every OR EXISTS (SELECT FROM moves JOIN chats USING (owner) WHERE chats.id = chat_id AND held_until > now())
    )
    RETURNING id
    """
)
GET_CLAIMED = Statement("SELECT id, cancel_requested FROM turns WHERE replica = :replica AND status = 'running'")
RENEW_LEASE = Statement(
    """
    INSERT INTO replicas (id, address, session, lease_until, webhooks, signs)
    VALUES (:replica, :address, :session, now() + :lease, :webhooks, true)
    ON CONFLICT (id) DO UPDATE SET lease_until = EXCLUDED.lease_until
    RETURNING clock_timestamp() AS time, now() AS began, lease_until, draining_since IS NOT NULL AS draining
    """
)
GET_PEERS = Statement(
    """
    SELECT id, lease_until, lease_until < now() AS lapsed, address = :address AS has_own_address,
           session IN (
               SELECT classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted
           ) AS connected,
           clock_timestamp() AS time
    FROM replicas WHERE id <> :replica
    """
)
# The attempt stays: the next claim raises it, which fences off an owner that is only slow. What such an owner still
# appends to its log is read by nobody: the turn's row names no replica, or the next one.
TAKE_OVER = Statement(
    f"""
    WITH gone AS (
        DELETE FROM replicas WHERE id = ANY(CAST(:gone AS uuid[]))
    ), taken AS (
        UPDATE turns SET status = 'queued', replica = NULL, recoveries = recoveries + 1
        WHERE status = 'running'
          AND (replica = ANY(CAST(:gone AS uuid[])) OR NOT EXISTS (SELECT FROM replicas WHERE id = turns.replica))
        RETURNING id, attempt
    ), {END_LOGS}
    SELECT id FROM taken
    """
)
# Where a turn could not be released, row and log stay for a takeover: a replica without a row is missed by nobody for a
# minute.
LEAVE = Statement(
    """
    WITH held AS (
        SELECT FROM turns WHERE replica = :replica AND status = 'running' LIMIT 1
    ), ended AS (
        DELETE FROM journal_ticks WHERE replica = :replica AND NOT EXISTS (SELECT FROM held)
    )
    DELETE FROM replicas WHERE id = :replica AND NOT EXISTS (SELECT FROM held) RETURNING id
    """
)
# Where the schema is out of reach for a while there is no channel either.
NOTIFY = Statement(f"SELECT pg_notify({CHANNEL}, :payload) WHERE current_schema() IS NOT NULL")


@dataclass(frozen=True, slots=True)
class Peer:
    """Another replica. `connected`: its session is alive. `lapsed`: its lease has expired. `has_own_address`: its
    address is that of this one. It is an earlier process, or two servers share a host name and a port.
    """

    id: UUID
    connected: bool
    lapsed: bool
    has_own_address: bool
    lease_until: datetime


class Queue:
    """The queue as one replica uses it. `session` is the key of this replica's advisory lock
    (app.storage.runs.session). Turns leave rows for `webhooks` as long as the replica lives.
    """

    def __init__(
        self,
        database: Database,
        replica: UUID,
        address: str,
        session: int,
        webhooks: Collection[WebhookKind] = (),
    ) -> None:
        self._database = database
        self.replica = replica
        self.renewals = Renewals()
        self._address = address
        self._session = session
        self._webhooks = sorted(webhooks)

    async def claim(self, limit: int, most_of_owner: int | None = None) -> Sequence[UUID]:
        """Claims up to `limit` queued turns for this replica, oldest first. With `most_of_owner` they are shared out
        between their owners, of whom none has more than that running.
        """
        claim = {"replica": self.replica, "step": attempts.draw_step(), "limit": limit}
        if most_of_owner is None:
            rows = await self._database.rows(CLAIM_TURNS, **claim)
        else:
            rows = await self._database.rows(CLAIM_TURNS_FAIRLY, **claim, most=most_of_owner)
        return [row["id"] for row in sorted(rows, key=lambda row: (row["created_at"], row["id"]))]

    async def claim_again(self, turns: Collection[UUID]) -> Collection[UUID]:
        """Claims those of these turns that this replica owns by their rows, for a new run."""
        rows = await self._database.rows(CLAIM_AGAIN, turns=turns, replica=self.replica, step=attempts.draw_step())
        return {row["id"] for row in rows}

    async def give_back(self, turns: Collection[UUID], *, every: bool) -> Set[UUID]:
        """Puts those of these turns back into the queue that this replica owns by their rows: `every` one, or those of
        owners who are held. None may run. Returns those that were put back.
        """
        rows = await self._database.rows(GIVE_BACK, turns=turns, replica=self.replica, every=every)
        return {row["id"] for row in rows}

    async def claimed(self) -> Mapping[UUID, bool]:
        """The turns that this replica owns by their rows; true for those whose cancellation is requested."""
        rows = await self._database.rows(GET_CLAIMED, replica=self.replica)
        return {row["id"]: row["cancel_requested"] for row in rows}

    async def renew_lease(self, seconds: float) -> bool:
        """Renews the lease, and learns the time of Postgres. Returns whether an operator has ordered that this replica
        drains.
        """
        asked = monotonic()
        row = await self._database.row(
            RENEW_LEASE,
            replica=self.replica,
            address=self._address,
            session=self._session,
            lease=timedelta(seconds=seconds),
            webhooks=self._webhooks,
        )
        assert row is not None
        CLOCK.learn(row["time"], asked, monotonic())
        self.renewals.note(row["lease_until"], Renewal(asked, row["began"]))
        is_draining: bool = row["draining"]
        return is_draining

    async def peers(self) -> Sequence[Peer]:
        """The other replicas. Where there are any, it learns the time of Postgres."""
        asked = monotonic()
        rows = await self._database.rows(GET_PEERS, replica=self.replica, address=self._address)
        if rows:
            CLOCK.learn(rows[0]["time"], asked, monotonic())
        return [
            Peer(row["id"], row["connected"], row["lapsed"], row["has_own_address"], row["lease_until"]) for row in rows
        ]

    async def take_over(self, gone: Sequence[UUID]) -> Sequence[UUID]:
        """Puts the running turns of these replicas, and of replicas without a row, back into the queue, with the text
        that their logs have.
        """
        return [row["id"] for row in await self._database.rows(TAKE_OVER, gone=gone)]

    async def leave(self) -> None:
        """Deletes the row of this replica, and its log, unless a turn is still its own. A row that stays is found
        like that of a dead replica.
        """
        with suppress(StorageError):
            await self._database.row(LEAVE, replica=self.replica)

    async def notify(self, payload: str) -> None:
        """Notifies every replica, this one too."""
        await self._database.row(NOTIFY, payload=payload)
