"""Counts queued and waiting turns, open jobs, and replicas."""

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple

import msgspec

from turnstream.domain.errors import StorageError
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import OWNER_RUNNING_TURNS
from turnstream.storage.runs.queue import CLAIMABLE

# The time at which a turn was last queued: a turn is queued again after a person's answer or the end of a job.
QUEUED_SINCE: Final = """greatest({turn}.created_at, CASE WHEN {turn}.asked > 0 THEN greatest(
        (SELECT max(answered_at) FROM asks WHERE turn_id = {turn}.id),
        (SELECT max(settled_at) FROM jobs WHERE turn_id = {turn}.id)
    ) END)"""
# The limit of running turns for an owner without a plan, from the rows of live replicas; null if there is no limit.
OWNER_LIMIT: Final = f"""(
        SELECT CASE WHEN NOT bool_or(most = '') THEN max(nullif(most, '')::int) END
        FROM (SELECT configuration->>'{OWNER_RUNNING_TURNS}' AS most FROM replicas WHERE lease_until > now()) AS replica
    )"""
# A turn behind an open turn of its chat waits by design. So does a turn whose owner has reached the limit of running
# turns. Neither turn counts as the oldest.
COUNT_OPEN = Statement(
    f"""
    WITH busy AS MATERIALIZED (
        SELECT queue_owner FROM turns LEFT JOIN accounts ON accounts.owner = queue_owner
        WHERE status = 'running' AND queue_owner IS NOT NULL
        GROUP BY queue_owner, running_turns HAVING count(*) >= coalesce(running_turns, {OWNER_LIMIT})
    )
    SELECT count(*) FILTER (WHERE status = 'queued') AS queued, count(*) FILTER (WHERE status = 'waiting') AS waiting,
        coalesce((
            SELECT extract(epoch FROM now() - min({QUEUED_SINCE.format(turn="next")}))::float FROM turns AS next
            WHERE {CLAIMABLE} AND coalesce(next.queue_owner, '') NOT IN (SELECT queue_owner FROM busy)
        ), 0) AS oldest,
        (
            SELECT json_build_object(
                'due', count(*) FILTER (WHERE holder.id IS NULL AND (handle IS NULL OR due_at <= now())),
                'running', count(*) FILTER (WHERE holder.id IS NOT NULL),
                'detached', count(*) FILTER (WHERE holder.id IS NULL AND handle IS NOT NULL AND due_at > now()),
                'overdue', coalesce(max(extract(epoch FROM now() - CASE
                    WHEN holder.id IS NULL AND due_at <= now() THEN due_at WHEN deadline <= now() THEN deadline
                END)), 0)
            ) FROM jobs LEFT JOIN replicas AS holder ON holder.id = jobs.replica WHERE settled_at IS NULL
        ) AS jobs,
        (SELECT count(*) FROM replicas WHERE lease_until > now()) AS replicas
    FROM turns WHERE status IN ('queued', 'waiting')
    """
)


@dataclass(frozen=True, slots=True)
class JobCounts:
    """The numbers of open jobs by state. `overdue` is the longest time in seconds for which a job has been due without
    a runner, or has been past its deadline.
    """

    due: int
    running: int
    detached: int
    overdue: float


class OpenTurns(NamedTuple):
    """The numbers of open turns, of open jobs and of replicas. `oldest` is the time in seconds for which the oldest
    claimable turn has been queued; 0 if no turn is claimable.
    """

    queued: int
    waiting: int
    oldest: float
    jobs: JobCounts
    replicas: int


_jobs = msgspec.json.Decoder(JobCounts)


class TurnCounts:
    """Counts at most once every `keep` seconds for all callers. A count must complete within `timeout` seconds."""

    def __init__(self, database: Database, keep: float = 5.0, timeout: float = 1.0) -> None:
        self._database = database
        self._keep = keep
        self._timeout = timeout
        self._lock = asyncio.Lock()
        self._counted: float | None = None
        self._counts: OpenTurns | None = None

    async def open_turns(self) -> OpenTurns | None:
        """Returns counts that are at most `keep` seconds old, or None if Postgres does not respond in time."""
        async with self._lock:
            if self._counted is None or monotonic() - self._counted >= self._keep:
                self._counts = await self._count()
                self._counted = monotonic()
            return self._counts

    async def _count(self) -> OpenTurns | None:
        try:
            async with asyncio.timeout(self._timeout):
                row = await self._database.row(COUNT_OPEN)
        except (StorageError, TimeoutError):
            return None
        if row is None:
            return None
        return OpenTurns(row["queued"], row["waiting"], row["oldest"], _jobs.decode(row["jobs"]), row["replicas"])
