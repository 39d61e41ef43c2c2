"""Stores the result of a job that a program elsewhere posts. The program has a token for that job alone."""

from dataclasses import dataclass
from uuid import UUID

from turnstream.storage import contents
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import OPEN_STATUSES, to_json
from turnstream.storage.runs.queue import QUEUED, UPDATED
from turnstream.storage.runs.session import CHANNEL, JOBS

# The turn is locked first, as it is for its own writes and for the end of a job: only the first of two simultaneous
# results is stored. The job's runner then finds that the job is over.
PUT_RESULT = Statement(
    f"""
    WITH job AS (
        SELECT id, turn_id, outcome, reports FROM jobs WHERE id = :job AND token_digest = CAST(:digest AS bytea)
    ), turn AS (
        SELECT turns.id, status, chat_id FROM turns JOIN job ON turn_id = turns.id
        WHERE CASE WHEN status IN {OPEN_STATUSES} THEN NOT cancel_requested ELSE reports AND status <> 'cancelled' END
        FOR NO KEY UPDATE OF turns
    ), settled AS (
        UPDATE jobs SET outcome = CAST(:outcome AS json), settled_at = now(), replica = NULL
        FROM turn WHERE jobs.id = :job AND turn_id = turn.id AND jobs.settled_at IS NULL
        RETURNING turn_id, chat_id, jobs.reports
    ), arrived AS (
        UPDATE turns
        SET arrivals = arrivals + 1, status = CASE WHEN status = 'waiting' THEN 'queued' ELSE status END
        WHERE id IN (SELECT turn_id FROM settled WHERE NOT reports)
        RETURNING id, status
    )
    SELECT job.turn_id, job.outcome IS NOT NULL AS was_settled, settled.turn_id IS NOT NULL AS is_applied,
        (SELECT owner FROM chats WHERE chats.id = settled.chat_id) AS owner,
        pg_notify({CHANNEL}, CASE WHEN settled.reports THEN '{JOBS}' WHEN status = 'queued' THEN '{QUEUED}'
            ELSE '{UPDATED} ' || arrived.id END)
    FROM job LEFT JOIN settled ON true LEFT JOIN arrived ON true
    """,
    seals=[contents.JOBS.named(turn_id="turn")],
)
GET_TURN_OF_JOB = Statement("SELECT turn_id FROM jobs WHERE id = :job AND token_digest = CAST(:digest AS bytea)")


@dataclass(frozen=True, slots=True)
class PutResult:
    """The effect of a posted result. If the result became the outcome of the job, `owner` is the owner of the turn.
    Otherwise `reason` is `settled` if the job already had an outcome, or `turn_ended` if the turn no longer waits for
    the job.
    """

    turn: UUID
    reason: str | None = None
    owner: str | None = None


class JobResults:
    def __init__(self, database: Database) -> None:
        """`database` may read the rows of all owners, so the statement compares the token."""
        self._database = database

    async def put(self, job: UUID, digest: bytes, end: object) -> PutResult | None:
        """Stores `end` as the outcome of the job. Returns None if no job has this id and a token with this digest."""
        named = await self._database.row(GET_TURN_OF_JOB, job=job, digest=digest)
        if named is None:
            return None
        values = {"job": job, "digest": digest, "turn": named["turn_id"], "outcome": to_json(end)}
        row = await self._database.row(PUT_RESULT, **values)
        if row is None:
            return None
        if row["is_applied"]:
            return PutResult(row["turn_id"], owner=row["owner"])
        # If two results arrive at the same time, the job was open when this statement read it, but the other result has
        # settled the job since.
        again = row["was_settled"] or await self._database.row(GET_SETTLED, job=job) is not None
        return PutResult(row["turn_id"], "settled" if again else "turn_ended")


GET_SETTLED = Statement("SELECT id FROM jobs WHERE id = :job AND outcome IS NOT NULL")
