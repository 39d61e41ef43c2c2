"""The queue of turns, and the replicas that claim its turns."""

from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import Literal
from uuid import UUID

from turnstream.domain.errors import StorageError
from turnstream.domain.membership import Peer
from turnstream.domain.turns import Turn
from turnstream.kit.clock import CLOCK
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import OPEN_STATUSES, to_json
from turnstream.storage.runs import attempts
from turnstream.storage.runs.attempts import NEXT_ATTEMPT
from turnstream.storage.runs.journal import END_LOGS
from turnstream.storage.runs.session import CHANNEL

# The first words of notifications. The id of a turn follows CANCEL and UPDATED; the id of a replica follows DRAIN.
QUEUED = "queued"  # a queued turn may exist
CANCEL = "cancel"
UPDATED = "told"  # the rows have a new answer or message; older replicas expect this word
DRAIN = "drain"

# If so many processes have died while they ran a turn, the turn is a suspect, because it may have killed them.
SUSPICIOUS = 2

# The pause between two checks of a turn that all live replicas have declined, and the maximum number of checks.
_PAUSE_OF_DECLINED = timedelta(seconds=30)
_MOST_LOOKS = 4
# The number of renewals of the lease that are remembered: enough for the longest configurable age of a copy.
_REMEMBERED = 200

# A replica claims a turn only after the previous turn of the branch has ended, and only if no move holds the owner.
CLAIMABLE = f"""
    status = 'queued' AND NOT EXISTS (
        SELECT FROM turns AS question JOIN turns AS before ON before.id = question.parent_id
        WHERE question.id = next.parent_id AND before.status IN {OPEN_STATUSES}
    ) AND NOT EXISTS (
        SELECT FROM moves JOIN chats USING (owner) WHERE chats.id = next.chat_id AND held_until > now()
    )
"""
# A replica without the model or a tool of a turn declines the turn, and does not claim it again while another replica
# may have both. After all replicas have declined, one replica claims the turn again after each pause, because a
# suitable replica may be starting. After the maximum of checks this replica runs the turn, which ends with an error.
_FOR_THIS_REPLICA = f"""
    {CLAIMABLE} AND (
        declined IS NULL OR cancel_requested OR :replica <> ALL(declined) OR declined_until < now() AND NOT EXISTS (
            SELECT FROM replicas WHERE id <> ALL(declined) AND lease_until > now() AND draining_since IS NULL
        )
    )
"""
# Replicas claim suspects before all other turns and in separate claims, with the fewest deaths first, so that one turn
# does not collect the deaths that other turns cause. Suspects with more deaths than SUSPICIOUS are claimed one at a
# time, which identifies the cause. The replica's row names the suspects of its last claim.
_SUSPECTS = f"""
    fewest AS (
        SELECT min(deaths) AS deaths FROM turns AS next
        WHERE :suspects > 0 AND deaths >= {SUSPICIOUS} AND {_FOR_THIS_REPLICA}
    ), suspects AS (
        SELECT id FROM turns AS next WHERE deaths = (SELECT deaths FROM fewest) AND {_FOR_THIS_REPLICA}
        ORDER BY created_at, id FOR UPDATE SKIP LOCKED
        LIMIT (SELECT CASE deaths WHEN {SUSPICIOUS} THEN :suspects ELSE least(:suspects, 1) END FROM fewest)
    ), named AS (
        UPDATE replicas SET suspects = found.ids FROM (SELECT array_agg(id) AS ids FROM suspects) AS found
        WHERE id = :replica AND replicas.suspects IS DISTINCT FROM found.ids
    )
"""
_CALM = f"{_FOR_THIS_REPLICA} AND deaths < {SUSPICIOUS} AND NOT EXISTS (SELECT FROM suspects)"
# The claim skips a turn whose place in its chat has changed since the snapshot of the statement, because the turn may
# now follow an open turn. The locked row of this turn has another `created_at` than the row in the snapshot.
_CLAIM = f"""
    UPDATE turns
    SET status = 'running', attempt = {NEXT_ATTEMPT}, replica = :replica, started_at = coalesce(started_at, now())
    WHERE id IN (
        SELECT id FROM chosen JOIN turns AS as_seen USING (id, created_at) UNION ALL SELECT id FROM suspects
    )
    RETURNING id, created_at, deaths
"""
# Orders turns by the time of the database, because ids have the times of replicas.
CLAIM_TURNS = Statement(
    f"""
    WITH {_SUSPECTS}, chosen AS (
        SELECT id, created_at FROM turns AS next WHERE {_CALM}
        ORDER BY created_at, id FOR UPDATE SKIP LOCKED LIMIT :limit
    )
    {_CLAIM}
    """
)
# The owner with the fewest running turns comes first, so no owner waits behind all turns of another owner. An index
# finds open turns by owner. The statement reads turns of at most `:limit` owners, and at most as many turns of each
# owner as may run. Replicas that claim at the same moment find the same turns, and skip each other's locked turns. The
# first queued turn is read in the order of an index: else the planner reads the whole table for a long queue.
CLAIM_TURNS_FAIRLY = Statement(
    f"""
    WITH {_SUSPECTS}, first_queued AS (
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
            SELECT FROM turns AS next WHERE queue_owner = owner AND {_CALM} LIMIT 1
        ) AS any_turn
        WHERE room > 0 LIMIT :limit
    ), ranked AS (
        SELECT next.id, running + row_number() OVER (PARTITION BY owner ORDER BY next.created_at, next.id) AS rank
        FROM owners, LATERAL (
            SELECT id, created_at FROM turns AS next WHERE queue_owner = owner AND {_CALM}
            ORDER BY created_at, id LIMIT least(room, :limit)
        ) AS next
    ), chosen AS (
        SELECT turns.id, turns.created_at FROM turns JOIN ranked USING (id)
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
# Puts back all turns, or only turns of owners whom a move holds. Nobody claims these turns before the move ends.
GIVE_BACK = Statement(
    """
    UPDATE turns SET status = 'queued', replica = NULL
    WHERE id = ANY(CAST(:turns AS uuid[])) AND replica = :replica AND status = 'running' AND (
        :every OR EXISTS (SELECT FROM moves JOIN chats USING (owner) WHERE chats.id = chat_id AND held_until > now())
    )
    RETURNING id
    """
)
DECLINE = Statement(
    """
    UPDATE turns SET status = 'queued', replica = NULL, declined_until = now() + :pause,
        declined = coalesce(declined, '{}') || CAST(:replica AS uuid),
        started_at = CASE WHEN EXISTS (SELECT FROM rounds WHERE turn_id = :turn) THEN started_at END
    WHERE id = :turn AND replica = :replica AND attempt = :attempt AND status = 'running' AND (
        SELECT count(*) - count(DISTINCT each) FROM unnest(declined) AS each
    ) < :looks
    RETURNING id
    """
)
GET_CLAIMED = Statement("SELECT id, cancel_requested FROM turns WHERE replica = :replica AND status = 'running'")
# The row has the time of the previous renewal, even after a failover. If that time is in the future, the clock was set
# back. A row that was written between the two renewals has a time from one lease before now to one lease after the
# previous renewal.
RENEW_LEASE = Statement(
    """
    WITH noticed AS (
        INSERT INTO clock_steps (began, until)
        SELECT now() - CAST(:lease AS interval), lease_until FROM replicas
        WHERE id = :replica AND lease_until - CAST(:lease AS interval) > now() + interval '1 second'
        ON CONFLICT DO NOTHING
    )
    INSERT INTO replicas (
        id, address, session, lease_until, webhooks, signs, reads_tool_sets, edits_queue, runs_jobs, knows_reports,
        configuration, extensions, master_keys
    )
    VALUES (
        :replica, :address, :session, now() + :lease, :webhooks, true, true, true, true, true,
        :configuration, :extensions, :master_keys
    )
    ON CONFLICT (id) DO UPDATE SET lease_until = EXCLUDED.lease_until
    RETURNING clock_timestamp() AS time, now() AS began, lease_until, draining_since IS NOT NULL AS draining,
        ARRAY(SELECT clock_steps.began FROM clock_steps ORDER BY 1) AS steps,
        ARRAY(SELECT until FROM clock_steps ORDER BY clock_steps.began) AS ends
    """
)
GET_PEERS = Statement(
    """
    SELECT id, address, lease_until, lease_until < now() AS lapsed, address = :address AS has_own_address,
           session IN (
               SELECT classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted
           ) AS connected,
           clock_timestamp() AS time
    FROM replicas WHERE id <> :replica
    """
)
# The attempt does not change: the next claim raises it, which fences off an owner that is only slow. Nobody reads rows
# that such an owner later adds to its log, because the turn's row names no replica, or the next owner.
#
# At most one turn has killed the process. If the last claim of the process was a claim of suspects, the death counts
# only for these suspects, otherwise for all its turns. Only a turn that ran alone is charged a recovery. Kept text is
# progress, and resets the recoveries; the last second of text, after the last checkpoint, does not count.
TAKE_OVER = Statement(
    f"""
    WITH gone AS (
        DELETE FROM replicas WHERE id = ANY(CAST(:gone AS uuid[]))
    ), lost AS (
        SELECT turns.id, replica, count(*) OVER process = 1 AS alone,
            coalesce(turns.id = ANY(suspects) OR NOT bool_or(turns.id = ANY(suspects)) OVER process, true) AS counts,
            request->'limits'->>'recovery' IS DISTINCT FROM 'retry' AND (
                EXISTS (SELECT FROM open_text AS text WHERE turn_id = turns.id AND text.attempt = turns.attempt)
                OR EXISTS (
                    SELECT FROM rounds AS last JOIN blocks ON blocks.turn_id = last.turn_id AND round = number
                    WHERE last.turn_id = turns.id AND sealed_by IS NULL AND last.stop_reason IS DISTINCT FROM 'voided'
                )
            ) AS has_new_text
        FROM turns LEFT JOIN replicas ON replicas.id = replica
        WHERE status = 'running' AND (replica = ANY(CAST(:gone AS uuid[])) OR replicas.id IS NULL)
        WINDOW process AS (PARTITION BY replica)
    ), taken AS (
        UPDATE turns SET status = 'queued', replica = NULL, deaths = deaths + CAST(counts AS int),
            recoveries = CASE WHEN has_new_text THEN 0 ELSE recoveries END + CAST(alone AS int)
        FROM lost WHERE turns.id = lost.id AND turns.replica = lost.replica AND status = 'running'
        RETURNING turns.id, attempt
    ), {END_LOGS}
    SELECT id FROM taken
    """
)
# If the replica still owns a turn, its row and log stay, because a takeover without the replica's row takes a minute.
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
# If the schema is inaccessible, the channel does not exist either.
NOTIFY = Statement(f"SELECT pg_notify({CHANNEL}, :payload) WHERE current_schema() IS NOT NULL")


@dataclass(frozen=True, slots=True)
class Claim:
    """The claimed turns, oldest first. `deaths` is the highest count among claimed suspects, and 0 for other turns."""

    turns: Sequence[UUID] = ()
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Renewal:
    """A renewal of this replica's lease: `asked` is the time on the monotonic clock, `time` is the time of Postgres."""

    asked: float
    time: datetime


class Renewals:
    """The last renewals of the lease. Each is found by the end of the lease that it has written."""

    def __init__(self) -> None:
        self._by_end: dict[datetime, Renewal] = {}

    def note(self, end: datetime, renewal: Renewal) -> None:
        self._by_end[end] = renewal
        if len(self._by_end) > _REMEMBERED:
            del self._by_end[next(iter(self._by_end))]

    def that_wrote(self, end: datetime) -> Renewal | None:
        return self._by_end.get(end)


# The events: a turn has ended, or has begun to wait for a person.
WebhookKind = Literal["ended", "waiting"]


class Queue:
    """The queue for one replica. `session` is the key of this replica's advisory lock
    (turnstream.storage.runs.session). While the replica lives, turns write rows for the events in `webhooks` and for
    some of `extensions`. The command `doctor` compares the digests in `configuration`.
    """

    def __init__(
        self,
        database: Database,
        replica: UUID,
        address: str,
        session: int,
        webhooks: Collection[WebhookKind] = (),
        configuration: Mapping[str, str] | None = None,
        extensions: Collection[str] = (),
        master_keys: Collection[bytes] = (),
    ) -> None:
        self._database = database
        self.replica = replica
        self.renewals = Renewals()
        self._address = address
        self._session = session
        self._webhooks = sorted(webhooks)
        self._extensions = sorted(extensions)
        self._master_keys = sorted(master_keys)
        self._configuration = None if configuration is None else to_json(configuration)

    async def claim(self, limit: int, most_of_owner: int | None = None) -> Sequence[UUID]:
        """Claims queued turns for this replica, as `take` does."""
        return (await self.take(limit, most_of_owner)).turns

    async def take(self, limit: int, most_of_owner: int | None = None, *, suspects: int = 1) -> Claim:
        """Claims queued turns for this replica, oldest first: up to `suspects` suspects or, if there are none, up to
        `limit` other turns. With `most_of_owner` the claims are distributed among owners, so that each owner has at
        most so many running turns.
        """
        claim = {"replica": self.replica, "step": attempts.draw_step(), "limit": limit, "suspects": suspects}
        if most_of_owner is None:
            rows = await self._database.rows(CLAIM_TURNS, **claim)
        else:
            rows = await self._database.rows(CLAIM_TURNS_FAIRLY, **claim, most=most_of_owner)
        rows = sorted(rows, key=lambda row: (row["created_at"], row["id"]))
        deaths = max((row["deaths"] for row in rows), default=0)
        return Claim([row["id"] for row in rows], deaths if deaths >= SUSPICIOUS else 0)

    async def claim_again(self, turns: Collection[UUID]) -> Collection[UUID]:
        """Claims, for a new run, the `turns` whose rows name this replica as owner. Returns the claimed turns."""
        rows = await self._database.rows(CLAIM_AGAIN, turns=turns, replica=self.replica, step=attempts.draw_step())
        return {row["id"] for row in rows}

    async def give_back(self, turns: Collection[UUID], *, every: bool) -> Set[UUID]:
        """Puts turns whose rows name this replica back into the queue: `every` turn, or only turns of owners whom a
        move holds. The turns must not be running here. Returns the turns that are in the queue now.
        """
        rows = await self._database.rows(GIVE_BACK, turns=turns, replica=self.replica, every=every)
        return {row["id"] for row in rows}

    async def decline(self, turn: Turn) -> bool:
        """Puts a claimed turn back into the queue for other replicas, because this replica lacks its model or a tool.
        Returns False if no live replica has had the model and tools for minutes, or the claim is lost.
        """
        return None is not await self._database.row(
            DECLINE,
            turn=turn.id,
            replica=self.replica,
            attempt=turn.attempt,
            pause=_PAUSE_OF_DECLINED,
            looks=_MOST_LOOKS,
        )

    async def claimed(self) -> Mapping[UUID, bool]:
        """Returns the turns whose rows name this replica, each with true if its cancellation was requested."""
        rows = await self._database.rows(GET_CLAIMED, replica=self.replica)
        return {row["id"]: row["cancel_requested"] for row in rows}

    async def renew_lease(self, seconds: float) -> bool:
        """Renews the lease, and reads the clock of Postgres and its steps. Returns whether an operator has ordered a
        drain.
        """
        asked = monotonic()
        row = await self._database.row(
            RENEW_LEASE,
            replica=self.replica,
            address=self._address,
            session=self._session,
            lease=timedelta(seconds=seconds),
            webhooks=self._webhooks,
            configuration=self._configuration,
            extensions=self._extensions,
            master_keys=self._master_keys,
        )
        assert row is not None
        CLOCK.learn(row["time"], asked, monotonic())
        CLOCK.learn_steps(list(zip(row["steps"], row["ends"], strict=True)))
        self.renewals.note(row["lease_until"], Renewal(asked, row["began"]))
        is_draining: bool = row["draining"]
        return is_draining

    async def peers(self) -> Sequence[Peer]:
        """Returns the other replicas. If there are any, also reads the time of Postgres from their rows."""
        asked = monotonic()
        rows = await self._database.rows(GET_PEERS, replica=self.replica, address=self._address)
        if rows:
            CLOCK.learn(rows[0]["time"], asked, monotonic())
        return [
            Peer(row["id"], row["connected"], row["lapsed"], row["has_own_address"], row["lease_until"], row["address"])
            for row in rows
        ]

    async def take_over(self, gone: Sequence[UUID]) -> Sequence[UUID]:
        """Puts the running turns of the replicas in `gone`, and of replicas without a row, into the queue, and stores
        the text of the turns from the replicas' logs. Returns the turns.
        """
        return [row["id"] for row in await self._database.rows(TAKE_OVER, gone=gone)]

    async def leave(self) -> None:
        """Deletes the row and the log of this replica, unless the replica still owns a turn. Other replicas treat a
        remaining row like the row of a dead replica.
        """
        with suppress(StorageError):
            await self._database.row(LEAVE, replica=self.replica)

    async def notify(self, payload: str) -> None:
        """Notifies every replica, including this replica."""
        await self._database.row(NOTIFY, payload=payload)
