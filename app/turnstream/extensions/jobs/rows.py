"""Reads and writes jobs for their runners. Each write is fenced by the job's attempt, which every claim raises.

A dead runner has no row in `replicas`, so another runner claims its jobs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from turnstream.domain.asks import AskAnswer
from turnstream.domain.jobs import Job
from turnstream.domain.turns import TurnRequest
from turnstream.storage import contents
from turnstream.storage.contents import ASKS, CALLS, REQUESTS
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.rows import OPEN_STATUSES, TOOLS, answer_from, from_json, requests_from, to_json
from turnstream.storage.runs.queue import QUEUED, UPDATED
from turnstream.storage.runs.session import CHANNEL, JOBS

# The owner of a turn. The row of an open turn has the owner; otherwise the row of the chat is read.
_OWNER = "coalesce(turns.queue_owner, (SELECT chats.owner FROM chats WHERE chats.id = turns.chat_id))"
# A job continues while its turn is open and not cancelled, and no move holds its owner. A job with a report also
# continues after its turn has ended, unless the turn was cancelled.
_GOES_ON = f"""
    CASE WHEN turns.status IN {OPEN_STATUSES} THEN NOT turns.cancel_requested
        ELSE jobs.reports AND turns.status <> 'cancelled' END
    AND NOT EXISTS (SELECT FROM moves WHERE moves.owner = {_OWNER} AND held_until > now())
"""
_IS_FREE = "jobs.settled_at IS NULL AND NOT EXISTS (SELECT FROM replicas WHERE replicas.id = jobs.replica)"
_REPORT_WAITS = "EXISTS (SELECT FROM jobs WHERE reports AND settled_at IS NOT NULL AND delivery IS NULL)"
_STOP_WAITS = "EXISTS (SELECT FROM stopped_jobs WHERE due_at <= now())"
# Each poll of a runner first runs this statement. Postgres plans the claim each time, which takes a hundred times as
# long as the claim itself, but plans a statement without parameters only once. An index has the order of the subquery.
GET_WAITING = Statement(
    f"""
    SELECT (SELECT id FROM jobs WHERE settled_at IS NULL ORDER BY queue_owner, name, due_at LIMIT 1) IS NOT NULL
        OR {_REPORT_WAITS} OR {_STOP_WAITS} AS waits
    """
)
# The owner with the fewest running jobs comes first. In one claim, an owner gets at most half of the slots that the
# owner's running jobs leave free, so that a slot remains for other owners, even beside long jobs. If the deadline of a
# job has passed, even a replica without the tool claims the job, so that the job ends. The claim also reports other
# waiting work, so its result has a row even if no job is claimed. Jobs that are not due, and jobs of other tools, are
# not read: if any job is due, an index returns each pair of an owner and a tool, and the first due jobs of each pair.
# The query orders these jobs by all columns of that index, and compares the columns as rows. Otherwise the planner
# would choose the index of due times, and read the jobs of all owners for each pair. An index of deadlines finds the
# jobs whose deadline has passed.
CLAIM_JOBS = Statement(
    f"""
    WITH RECURSIVE running AS (
        SELECT queue_owner AS owner, count(*) AS running, count(*) FILTER (WHERE replica = :replica) AS here
        FROM jobs JOIN replicas ON replicas.id = jobs.replica GROUP BY queue_owner
    ), pairs AS (
        (
            SELECT queue_owner AS owner, name FROM jobs
            WHERE settled_at IS NULL AND CAST(:free AS int) > 0 AND (
                SELECT id FROM jobs WHERE {_IS_FREE} AND due_at <= now() ORDER BY due_at LIMIT 1
            ) IS NOT NULL
            ORDER BY queue_owner, name LIMIT 1
        )
        UNION ALL SELECT following.* FROM pairs, LATERAL (
            SELECT queue_owner, name FROM jobs
            WHERE settled_at IS NULL AND (queue_owner, name) > (pairs.owner, pairs.name)
            ORDER BY queue_owner, name LIMIT 1
        ) AS following
    ), due AS (
        SELECT first_due.* FROM pairs, LATERAL (
            SELECT jobs.id, due_at AS since, jobs.queue_owner AS owner FROM jobs JOIN turns ON turns.id = turn_id
            WHERE (jobs.queue_owner, jobs.name) >= (pairs.owner, pairs.name)
              AND (jobs.queue_owner, jobs.name, due_at) <= (pairs.owner, pairs.name, now())
              AND {_IS_FREE} AND {_GOES_ON}
            ORDER BY jobs.queue_owner, jobs.name, due_at LIMIT (CAST(:free AS int) + 1) / 2
        ) AS first_due
        WHERE pairs.name = ANY(CAST(:names AS text[]))
    ), late AS (
        SELECT jobs.id, deadline AS since, jobs.queue_owner AS owner FROM jobs JOIN turns ON turns.id = turn_id
        WHERE deadline <= now() AND {_IS_FREE} AND {_GOES_ON}
        ORDER BY deadline LIMIT CAST(:free AS int)
    ), ranked AS (
        SELECT id, since, coalesce(running, 0) AS running,
            (CAST(:free AS int) + 1 - coalesce(here, 0)) / 2 AS room,
            row_number() OVER (PARTITION BY owner ORDER BY since, id) AS place
        FROM (SELECT * FROM due UNION SELECT * FROM late WHERE id NOT IN (SELECT id FROM due)) AS wanted
        LEFT JOIN running USING (owner)
    ), chosen AS (
        SELECT jobs.id FROM jobs JOIN ranked USING (id)
        WHERE place <= room AND {_IS_FREE}
        ORDER BY running + place, since, jobs.id
        FOR UPDATE OF jobs SKIP LOCKED LIMIT (CAST(:free AS int) + 1) / 2
    ), claimed AS (
        UPDATE jobs SET replica = :replica, attempt = jobs.attempt + 1, started_at = now()
        FROM chosen, turns
        WHERE jobs.id = chosen.id AND turns.id = turn_id
        RETURNING jobs.id, turn_id, round, tool_use_id, name, kind, input, deadline, checkpoint, handle,
            jobs.attempt, progress, reports, (
                SELECT answer FROM asks
                WHERE asks.turn_id = jobs.turn_id AND asks.round = jobs.round
                  AND asks.tool_use_id = jobs.tool_use_id || '#j' || jobs.asked_in || '.0'
            ) AS answer, jobs.tool_use_id || '#j' || jobs.asked_in || '.0' AS question_id,
            chat_id, {_OWNER} AS owner, request, {TOOLS} AS tools
    )
    SELECT claimed.*, {_REPORT_WAITS} OR EXISTS (
        SELECT FROM jobs
        WHERE reports AND settled_at IS NULL AND (SELECT status FROM turns WHERE id = turn_id) = 'cancelled'
    ) AS reports_wait, {_STOP_WAITS} AS stops_wait
    FROM (SELECT) AS always LEFT JOIN claimed ON true
    """,
    opens=[REQUESTS.named(id="turn_id"), contents.JOBS, ASKS.named(tool_use_id="question_id")],
)
# The jobs that this replica has according to the rows, and whether each job may continue.
GET_HELD_JOBS = Statement(
    f"""
    SELECT jobs.id, jobs.attempt, {_GOES_ON} AS goes_on FROM jobs JOIN turns ON turns.id = turn_id
    WHERE jobs.replica = :replica AND jobs.settled_at IS NULL
    """
)
RELEASE_JOBS = Statement(
    f"""
    WITH released AS (
        UPDATE jobs SET replica = NULL
        WHERE id = ANY(CAST(:jobs AS uuid[])) AND replica = :replica AND settled_at IS NULL RETURNING id
    )
    SELECT id, pg_notify({CHANNEL}, '{JOBS}') FROM released
    """
)
_OF_JOB = contents.JOBS.named(turn_id="turn")
_MESSAGE = contents.JOBS.named(turn_id="turn", progress="message")
_QUESTION = ASKS.named(turn_id="turn", tool_use_id="question_id")
# The wake-up of a running job sets `due_at` to a time after the job's start. Such a job is due again as soon as it is
# detached.
DETACH_JOB = Statement(
    """
    UPDATE jobs SET handle = CAST(:handle AS json), replica = NULL, progress = coalesce(:message, progress),
        asked_in = NULL, due_at = CASE WHEN due_at > started_at THEN now()
            ELSE coalesce(now() + make_interval(secs => CAST(:after AS double precision)), 'infinity') END
    WHERE id = :job AND attempt = :attempt AND replica = :replica AND settled_at IS NULL RETURNING id
    """,
    seals=[_MESSAGE],
)
# A question that a job asks. The turn is locked first, as it is for its own writes: the job of a turn that has ended,
# or must stop, asks nobody.
_ASKING = f"""
    WITH turn AS (
        SELECT id FROM turns WHERE id = :turn AND status IN {OPEN_STATUSES} AND NOT cancel_requested
        FOR NO KEY UPDATE
    )"""
_IS_HELD = """jobs.id = :job AND turn_id = turn.id AND attempt = :attempt AND replica = :replica
            AND settled_at IS NULL AND NOT reports"""
_ASKED = f"""
    asked AS (
        INSERT INTO asks (turn_id, round, tool_use_id, name, kind, digest, attempt, expires_at, question, approvers)
        SELECT turn_id, round, :question_id, name, 'elicitation', :digest, attempt,
            now() + make_interval(secs => CAST(:seconds AS double precision)), CAST(:question AS json),
            CAST(:approvers AS text[])
        FROM held
        ON CONFLICT DO NOTHING RETURNING turn_id
    ), counted AS (
        UPDATE turns SET asked = asked + 1 FROM asked WHERE turns.id = asked.turn_id
    )
    SELECT id, pg_notify({CHANNEL}, '{UPDATED} ' || turn_id) FROM held
"""
ASK_FOR_JOB = Statement(
    f"{_ASKING}, held AS (SELECT jobs.* FROM jobs, turn WHERE {_IS_HELD} FOR NO KEY UPDATE OF jobs), {_ASKED}",
    seals=[_QUESTION],
)
# A trigger makes the job due when the answer arrives. Without an answer, the job is due after the `pause`. The deadline
# of the job moves by the same time. A wake-up during the run does not make the job due earlier.
DETACH_TO_ASK = Statement(
    f"""
    {_ASKING}, held AS (
        UPDATE jobs SET handle = CAST(:handle AS json), replica = NULL, progress = coalesce(:message, progress),
            asked_in = attempt, due_at = now() + pause, deadline = deadline + pause
        FROM turn, make_interval(secs => CAST(:pause AS double precision)) AS pause
        WHERE {_IS_HELD}
        RETURNING jobs.*
    ), {_ASKED}
    """,
    seals=[_MESSAGE, _QUESTION],
)
GET_ANSWER = Statement(
    """
    SELECT answer FROM asks WHERE turn_id = :turn AND round = :round AND tool_use_id = :question_id
    """,
    opens=[_QUESTION],
)
# Uses the clock, and not the start of the transaction, because the time must be later than the start of a running job.
WAKE_JOBS = Statement(
    f"""
    WITH woken AS (
        UPDATE jobs SET due_at = clock_timestamp()
        WHERE id = ANY(CAST(:jobs AS uuid[])) AND settled_at IS NULL RETURNING id
    )
    SELECT id, pg_notify({CHANNEL}, '{JOBS}') FROM woken
    """
)
ADMIT_RESULT = Statement(
    """
    UPDATE jobs SET token_digest = :digest
    WHERE id = :job AND attempt = :attempt AND settled_at IS NULL RETURNING id
    """
)
CHECKPOINT_JOB = Statement(
    """
    UPDATE jobs SET checkpoint = CAST(:checkpoint AS json)
    WHERE id = :job AND attempt = :attempt AND settled_at IS NULL RETURNING id
    """,
    seals=[_OF_JOB],
)
STORE_PROGRESS = Statement(
    """
    WITH news AS (
        SELECT * FROM unnest(
            CAST(:jobs AS uuid[]), CAST(:attempts AS int[]), CAST(:messages AS text[]), CAST(:outputs AS json[])
        ) AS n (id, attempt, message, output)
    ), stored AS (
        UPDATE jobs SET progress = coalesce(message, progress) FROM news
        WHERE jobs.id = news.id AND jobs.attempt = news.attempt AND settled_at IS NULL
        RETURNING turn_id, round, tool_use_id, output
    )
    UPDATE tool_calls SET preliminary = output FROM stored
    WHERE tool_calls.turn_id = stored.turn_id AND tool_calls.round = stored.round
      AND tool_calls.tool_use_id = stored.tool_use_id AND state = 'started' AND output IS NOT NULL
    """,
    seals=[
        contents.JOBS.named(turn_id="turns", progress="messages"),
        CALLS.named(turn_id="turns", preliminary="outputs"),
    ],
)
# The turn is locked first, as it is for its own writes. A waiting turn is queued; a running turn reads the outcome. If
# the job has a report, the runners are notified instead of the turn, and deliver the report.
SETTLE_JOB = Statement(
    f"""
    WITH turn AS (
        SELECT id FROM turns WHERE id = :turn FOR NO KEY UPDATE
    ), settled AS (
        UPDATE jobs SET outcome = CAST(:outcome AS json), settled_at = now(), replica = NULL FROM turn
        WHERE jobs.id = :job AND turn_id = turn.id AND jobs.attempt = :job_attempt AND settled_at IS NULL
        RETURNING turn_id, reports
    ), arrived AS (
        UPDATE turns
        SET arrivals = arrivals + 1, status = CASE WHEN status = 'waiting' THEN 'queued' ELSE status END
        WHERE id IN (SELECT turn_id FROM settled WHERE NOT reports) AND status IN {OPEN_STATUSES}
        RETURNING id, status
    )
    SELECT pg_notify({CHANNEL}, CASE status WHEN 'queued' THEN '{QUEUED}' ELSE '{UPDATED} ' || id END) FROM arrived
    UNION ALL SELECT pg_notify({CHANNEL}, '{JOBS}') FROM settled WHERE reports
    """,
    seals=[_OF_JOB],
)


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that this replica has claimed. `attempt` counts its runs, including the present run. `checkpointed` is the
    last checkpoint of earlier runs. `handle` is the handle of the last detachment, and `answer` is the answer to the
    question that was asked with that detachment.
    """

    job: Job
    turn: UUID
    chat: UUID
    owner: str
    request: TurnRequest
    input: str
    deadline: datetime
    attempt: int
    checkpointed: Any = None
    handle: Any = None
    answer: AskAnswer | None = None

    @property
    def id(self) -> UUID:
        return self.job.id


class JobClaim(NamedTuple):
    """The claimed jobs, and whether reports and stops wait for delivery."""

    jobs: Sequence[ClaimedJob]
    reports_wait: bool
    stops_wait: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job since the last stored progress. `output` is its preliminary output, as JSON text."""

    turn: UUID
    job: UUID
    attempt: int
    message: str | None
    output: str | None


@dataclass(frozen=True, slots=True)
class JobQuestion:
    """A question that a job asks the person; `text` is JSON. If there are `approvers`, only they may answer the
    question.
    """

    id: str
    text: str
    seconds: float
    approvers: Sequence[str] = ()

    @property
    def digest(self) -> str:
        return sha256(f"{self.id} {self.text}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Detachment:
    """The state of a job that continues elsewhere. `handle` is JSON text. The job is due after `after` seconds, or when
    it is woken. A job with a `question` is also due when the question is answered or expires.
    """

    handle: str
    after: float | None = None
    message: str | None = None
    question: JobQuestion | None = None

    @property
    def pause(self) -> float | None:
        """The seconds until the job is due; None if the job is due only when it is woken."""
        spans = [self.after, None if self.question is None else self.question.seconds]
        return min((span for span in spans if span is not None), default=None)


class Jobs:
    """Claims jobs for the runner of `replica`, and writes their state."""

    def __init__(self, database: Database, replica: UUID) -> None:
        self._database = database
        self._replica = replica

    async def claim(self, free: int, names: Collection[str]) -> JobClaim:
        """Claims due jobs of the tools `names`, for at most half of the `free` slots, rounded up."""
        waiting = await self._database.row(GET_WAITING)
        if not waiting or not waiting["waits"]:
            return JobClaim((), reports_wait=False, stops_wait=False)
        rows = await self._database.rows(CLAIM_JOBS, replica=self._replica, free=free, names=list(names))
        claimed = [row for row in rows if row["id"] is not None]
        requests = requests_from(claimed)
        jobs = [_claimed(row, requests[row["request"], row["tools"]]) for row in claimed]
        return JobClaim(jobs, rows[0]["reports_wait"], rows[0]["stops_wait"])

    async def held(self) -> Mapping[UUID, int | None]:
        """Returns the jobs that this replica has according to the rows. The value is the attempt of the job, or None if
        the job must stop.
        """
        rows = await self._database.rows(GET_HELD_JOBS, replica=self._replica)
        return {row["id"]: row["attempt"] if row["goes_on"] else None for row in rows}

    async def release(self, jobs: Collection[UUID]) -> None:
        """Returns jobs to the queue, and notifies the runners."""
        await self._database.rows(RELEASE_JOBS, jobs=list(jobs), replica=self._replica)

    async def checkpoint(self, job: ClaimedJob, value: str) -> bool:
        """Stores JSON text as the checkpoint of the job. Returns False if the job is over, or another runner has it."""
        values = {"owner": job.owner, "turn": job.turn, "job": job.id, "attempt": job.attempt, "checkpoint": value}
        stored = await self._database.row(CHECKPOINT_JOB, **values)
        return stored is not None

    async def detach(self, job: ClaimedJob, detachment: Detachment) -> bool:
        """Releases the job until it is due again. Returns False if the job is over, or another runner has it."""
        values = {"handle": detachment.handle, "message": detachment.message, **self._held_by(job)}
        if (question := detachment.question) is None:
            return await self._database.row(DETACH_JOB, after=detachment.after, **values) is not None
        values |= {"pause": detachment.pause, **_columns_of_question(question)}
        return await self._database.row(DETACH_TO_ASK, **values) is not None

    async def ask(self, job: ClaimedJob, question: JobQuestion) -> bool:
        """Asks the person a question while the job runs. Returns False if the job is over or must stop, or another
        runner has it.
        """
        values = {**self._held_by(job), **_columns_of_question(question)}
        return await self._database.row(ASK_FOR_JOB, **values) is not None

    async def answer_to(self, job: ClaimedJob, question: JobQuestion) -> AskAnswer | None:
        row = await self._database.row(GET_ANSWER, **self._held_by(job), question_id=question.id)
        return None if row is None else answer_from(row["answer"])

    def _held_by(self, job: ClaimedJob) -> Mapping[str, object]:
        of_turn = {"owner": job.owner, "turn": job.turn, "round": job.job.round}
        return {"job": job.id, "attempt": job.attempt, "replica": self._replica, **of_turn}

    async def wake(self, jobs: Collection[UUID]) -> None:
        """Makes detached jobs due, and notifies the runners. A job that is running runs once more afterwards."""
        await self._database.rows(WAKE_JOBS, jobs=list(jobs))

    async def admit(self, job: ClaimedJob, digest: bytes) -> bool:
        """Allows a program to settle the job with the token that has this digest. Returns False if the job is over, or
        another runner has it.
        """
        row = await self._database.row(ADMIT_RESULT, job=job.id, attempt=job.attempt, digest=digest)
        return row is not None

    async def store_progress(self, reports: Sequence[Progress]) -> None:
        await self._database.rows(
            STORE_PROGRESS,
            turns=[report.turn for report in reports],
            jobs=[report.job for report in reports],
            attempts=[report.attempt for report in reports],
            messages=[report.message for report in reports],
            outputs=[report.output for report in reports],
        )

    async def settle(self, job: ClaimedJob, outcome: object) -> bool:
        """Stores the outcome once, and lets the turn continue. Returns False if the outcome comes too late or is
        repeated.
        """
        values = {**self._held_by(job), "job_attempt": job.attempt, "outcome": to_json(outcome)}
        return bool(await self._database.rows(SETTLE_JOB, **values))


def _columns_of_question(question: JobQuestion) -> Mapping[str, object]:
    return {
        "question_id": question.id,
        "digest": question.digest,
        "question": question.text,
        "seconds": question.seconds,
        "approvers": list(question.approvers) or None,
    }


def _claimed(row: Row, request: TurnRequest) -> ClaimedJob:
    job = Job(
        row["id"], row["round"], row["tool_use_id"], row["name"], row["kind"], row["progress"], reports=row["reports"]
    )
    return ClaimedJob(
        job=job,
        turn=row["turn_id"],
        chat=row["chat_id"],
        owner=row["owner"],
        request=request,
        input=row["input"],
        deadline=row["deadline"],
        attempt=row["attempt"],
        checkpointed=from_json(row["checkpoint"]),
        handle=from_json(row["handle"]),
        answer=answer_from(row["answer"]),
    )
