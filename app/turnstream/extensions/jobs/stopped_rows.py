"""Stopped jobs: the handles of calls that were stopped while they continued elsewhere. Triggers of `jobs` add the rows;
each row is deleted when the tool has stopped the work.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from turnstream.extensions.jobs.rows import ClaimedJob
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import from_json

# The time until the next try is also the lease: if a replica dies, another replica takes over its rows. After a day,
# even a replica without the tool takes the row of a job, and deletes the row.
TAKE_STOPPED_JOBS = Statement(
    """
    UPDATE stopped_jobs SET tries = tries + 1, due_at = now() + make_interval(mins => least(1 << tries, 60))
    WHERE id IN (
        SELECT id FROM stopped_jobs
        WHERE due_at <= now() AND (name = ANY(CAST(:names AS text[])) OR created_at < now() - interval '1 day')
        ORDER BY due_at FOR UPDATE SKIP LOCKED LIMIT :most
    )
    RETURNING id, owner, turn_id, round, tool_use_id, name, handle, tries
    """
)
FORGET_STOPPED_JOB = Statement("DELETE FROM stopped_jobs WHERE id = :job RETURNING id")
# Adds the row of a job that was stopped while its tool started work elsewhere. If another runner has the job, or a
# result from elsewhere has settled it, no stop is needed.
ADD_STOPPED_JOB = Statement(
    """
    INSERT INTO stopped_jobs (id, owner, turn_id, round, tool_use_id, name, handle)
    SELECT :job, :owner, :turn, :round, :tool_use_id, :name, CAST(:handle AS json)
    WHERE NOT EXISTS (
        SELECT FROM jobs WHERE id = :job AND (
            settled_at IS NULL OR outcome IS NOT NULL AND outcome #> '{outcome,notes,stopped}' IS NULL
        )
    )
    ON CONFLICT DO NOTHING RETURNING id
    """
)


@dataclass(frozen=True, slots=True)
class StoppedJob:
    """A stopped job whose work elsewhere must be stopped, too. `tries` counts the attempts to stop it, including the
    present attempt.
    """

    id: UUID
    owner: str
    turn: UUID
    round: int
    tool_use_id: str
    name: str
    handle: Any
    tries: int


class StoppedJobs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, names: Collection[str], most: int) -> Sequence[StoppedJob]:
        """Takes up to `most` due rows of the tools `names`, for one try."""
        rows = await self._database.rows(TAKE_STOPPED_JOBS, names=list(names), most=most)
        return [
            StoppedJob(
                row["id"],
                row["owner"],
                row["turn_id"],
                row["round"],
                row["tool_use_id"],
                row["name"],
                from_json(row["handle"]),
                row["tries"],
            )
            for row in rows
        ]

    async def forget(self, job: UUID) -> None:
        await self._database.rows(FORGET_STOPPED_JOB, job=job)

    async def add(self, job: ClaimedJob, handle: str) -> bool:
        """Adds a job that was stopped after its tool had started work elsewhere. Returns False if the job was not
        stopped.
        """
        call = {"turn": job.turn, "round": job.job.round, "tool_use_id": job.job.tool_use_id, "name": job.job.name}
        added = await self._database.row(ADD_STOPPED_JOB, job=job.id, owner=job.owner, handle=handle, **call)
        return added is not None
