"""The writes of a running turn. The attempt that owns the turn fences each write: an empty result means a lost claim.

A fence locks the turn's row first. The lock orders a stale owner and a new owner: the stale owner waits for the lock,
and then finds another attempt.

A failover to an asynchronous standby loses the last commits of running turns. So a fence lets a write pass only if the
rows have all earlier writes of the run; otherwise the run first repeats the lost writes. Thus the rows always represent
a real state of the turn, from which a later run can continue.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from turnstream.domain.asks import Ask, AskAnswer, Steer
from turnstream.domain.blocks import Block, CallState, PreliminaryOutput
from turnstream.domain.charges import charges_of, root_of
from turnstream.domain.errors import ClaimLost
from turnstream.domain.jobs import JobKind
from turnstream.domain.kinds import STEERED, TOOL_RESULT
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Status, Turn
from turnstream.storage import contents
from turnstream.storage.contents import ASKS, CALLS, NEW_BLOCKS
from turnstream.storage.database import Database, Row, Statement, retry_while_unavailable
from turnstream.storage.owners.charges import CHARGES, charging, columns_of_charges
from turnstream.storage.rows import IS_OF_JOB, columns_of, columns_of_rounds, from_json, to_json
from turnstream.storage.runs.attempts import next_attempt
from turnstream.storage.runs.journal import JournalEntry, OpenTexts
from turnstream.storage.runs.session import CHANNEL, JOBS

log = structlog.get_logger(__name__)


_HOLDS_ROUNDS = """(
    SELECT count(*) FILTER (WHERE sealed_by IS NOT NULL OR stop_reason = 'voided') >= CAST({done} AS bigint)
       AND count(*) FILTER (WHERE sealed_by IS NOT NULL) >= CAST({sealed} AS bigint)
    FROM rounds WHERE turn_id = turns.id
)"""
# The indexes of blocks begin at 0 and have no gap.
_HOLDS_BLOCKS = "(SELECT coalesce(max(index) + 1, 0) FROM blocks WHERE turn_id = turns.id) >= CAST({blocks} AS bigint)"


def _fence(
    held: str = "attempt = :attempt AND status = 'running'", *, columns: str = "id", writes: str = "whole"
) -> str:
    """Returns the beginning of a statement that writes only if the row meets `held`, and no earlier write is lost."""
    return f"""
    WITH held AS (
        SELECT {columns}, asked >= CAST(:held_asks AS bigint) AND {_HOLDS_BLOCKS.format(blocks=":held_blocks")}
            AND {_HOLDS_ROUNDS.format(done=":held_rounds", sealed=":held_sealed")} AS whole
        FROM turns WHERE id = :turn AND {held} FOR NO KEY UPDATE
    ), fenced AS (SELECT * FROM held WHERE {writes})
    """


_writes = partial(Statement, seals=[NEW_BLOCKS])
INSERT_BLOCKS = """
    INSERT INTO blocks
        (turn_id, index, round, attempt, type, text, data, tool_use_id, name, is_error, interrupted, notes, whole,
            client_data)
    SELECT fenced.id, b.*
    FROM fenced, unnest(
        CAST(:indexes AS int[]), CAST(:block_rounds AS int[]), CAST(:attempts AS int[]), CAST(:types AS text[]),
        CAST(:texts AS text[]), CAST(:datas AS json[]), CAST(:tool_use_ids AS text[]), CAST(:names AS text[]),
        CAST(:is_errors AS bool[]), CAST(:interrupteds AS bool[]), CAST(:notes AS json[]),
        CAST(:wholes AS text[]), CAST(:client_datas AS json[])
    ) AS b
    ON CONFLICT (turn_id, index) DO UPDATE SET text = EXCLUDED.text
"""

# Adds blocks to a turn that has no run, so that there is no claim for a fence.
ADD_BLOCKS = _writes("WITH fenced AS (SELECT CAST(:turn AS uuid) AS id)" + INSERT_BLOCKS + " RETURNING turn_id")

# Not even a late write changes a sealed round.
INSERT_ROUNDS = """
    INSERT INTO rounds
        (turn_id, number, attempt, messages, model, stop_reason, usage, request_id, data, sealed_by, started_at,
            first_delta_at, sealed_at, estimated_tokens, cost)
    SELECT r.*
    FROM fenced JOIN unnest(
        CAST(:round_turns AS uuid[]), CAST(:numbers AS int[]), CAST(:round_attempts AS int[]),
        CAST(:messages AS int[]), CAST(:models AS text[]), CAST(:stop_reasons AS text[]), CAST(:usages AS json[]),
        CAST(:request_ids AS text[]), CAST(:round_datas AS json[]), CAST(:sealed_bys AS int[]),
        CAST(:started_ats AS timestamptz[]), CAST(:first_delta_ats AS timestamptz[]),
        CAST(:sealed_ats AS timestamptz[]), CAST(:estimates AS int[]), CAST(:round_costs AS float8[])
    ) AS r (turn) ON r.turn = fenced.id
    ON CONFLICT (turn_id, number, attempt) DO UPDATE
    SET stop_reason = EXCLUDED.stop_reason, usage = EXCLUDED.usage, request_id = EXCLUDED.request_id,
        data = EXCLUDED.data, sealed_by = EXCLUDED.sealed_by, sealed_at = EXCLUDED.sealed_at,
        first_delta_at = EXCLUDED.first_delta_at, estimated_tokens = EXCLUDED.estimated_tokens, cost = EXCLUDED.cost
    WHERE rounds.sealed_by IS NULL
"""

_CHARGE_ROUNDS = ", " + charging(
    ":turn",
    "chats.owner, chat_id, 'round', fenced.id, {columns} FROM fenced JOIN chats ON chats.id = chat_id, " + CHARGES,
    held="EXISTS (SELECT FROM fenced)",
)

_CLEAR_TEXT = ", cleared AS (DELETE FROM open_text USING fenced WHERE turn_id = fenced.id)"

# Skips locked turns, so that the other turns do not wait for a locked turn.
BEGIN_ROUNDS = Statement(
    f"""
    WITH fenced AS (
        SELECT id
        FROM turns JOIN unnest(
            CAST(:round_turns AS uuid[]), CAST(:round_attempts AS int[]), CAST(:held_blocks AS bigint[]),
            CAST(:held_rounds AS bigint[]), CAST(:held_sealed AS bigint[])
        ) AS held (turn, attempt, blocks, rounds, sealed) ON id = turn AND turns.attempt = held.attempt
        WHERE status = 'running' AND {_HOLDS_BLOCKS.format(blocks="held.blocks")}
            AND {_HOLDS_ROUNDS.format(done="held.rounds", sealed="held.sealed")}
        FOR NO KEY UPDATE OF turns SKIP LOCKED
    ), begun AS ({INSERT_ROUNDS})
    SELECT id FROM fenced
    """
)

# The row of a round may be inserted together with the round's first blocks.
CLOSE_BLOCKS = _writes(
    _fence() + _CLEAR_TEXT + f", begun AS ({INSERT_ROUNDS}), closed AS ({INSERT_BLOCKS}) SELECT whole FROM held",
)

_SEALED = f"""
    {_CLEAR_TEXT}
    {_CHARGE_ROUNDS}
    , unwritten AS ({INSERT_BLOCKS}), sealed AS ({INSERT_ROUNDS})
"""

_START_CALLS = """
    INSERT INTO tool_calls (turn_id, round, tool_use_id, name, attempt, state, started_at)
    SELECT fenced.id, c.round, c.tool_use_id, c.name, :attempt, 'started', now()
    FROM fenced, unnest(CAST(:call_rounds AS int[]), CAST(:call_ids AS text[]), CAST(:call_names AS text[]))
        AS c (round, tool_use_id, name)
    ON CONFLICT (turn_id, round, tool_use_id)
        DO UPDATE SET attempt = EXCLUDED.attempt, started_at = EXCLUDED.started_at
"""

# The seal of a round also records which calls start next.
SEAL_ROUND = _writes(
    f"""
    {_fence(columns="id, chat_id")} {_SEALED}, counted AS (
        UPDATE turns SET usage = CAST(:turn_usage AS json), recoveries = :recoveries
        FROM fenced WHERE turns.id = fenced.id
    ), started AS ({_START_CALLS})
    SELECT whole FROM held
    """,
)

# The new attempt is a parameter, so that the write can be repeated if its answer is lost. The voided round proves that
# the earlier write took effect. The number of the attempt alone proves nothing, because a claim, even of this replica,
# may draw the same number. An earlier statement locks the turn, to wait for a first try that may still be running.
LOCK_TURN = Statement("SELECT id FROM turns WHERE id = :turn FOR NO KEY UPDATE")
VOID_ROUND = Statement(
    _fence(
        """
        replica = :replica AND status = 'running' AND (attempt = :attempt OR attempt = :next_attempt AND EXISTS (
            SELECT FROM rounds
            WHERE turn_id = :turn AND number = :number AND rounds.attempt = :round_attempt AND stop_reason = 'voided'
        ))
        """,
        columns="id, chat_id",
    )
    + f"""
    {_CLEAR_TEXT} {_CHARGE_ROUNDS}, forgotten AS (
        DELETE FROM blocks USING fenced WHERE turn_id = fenced.id AND round = :number
    ), voided AS ({INSERT_ROUNDS}), counted AS (
        UPDATE turns
        SET attempt = :next_attempt, recoveries = :recoveries, usage = CAST(:turn_usage AS json)
        FROM fenced WHERE turns.id = fenced.id
    )
    SELECT whole FROM held
    """
)

# The row of a job also records that its call has started, so a call has only one job. Replicas of an older version that
# cannot run jobs are added to the replicas that have declined the turn.
_START_JOBS = """
    jobs_started AS (
        INSERT INTO jobs (id, turn_id, round, tool_use_id, name, kind, input, deadline, attempt, reports, handle)
        SELECT j.id, fenced.id, j.round, j.tool_use_id, j.name, j.kind, j.input, j.deadline,
            CASE WHEN j.handle IS NULL THEN :job_runs ELSE 1 END, j.reports, j.handle
        FROM fenced, unnest(
            CAST(:job_ids AS uuid[]), CAST(:job_rounds AS int[]), CAST(:job_calls AS text[]),
            CAST(:job_names AS text[]), CAST(:job_kinds AS text[]), CAST(:job_inputs AS text[]),
            CAST(:deadlines AS timestamptz[]), CAST(:job_reports AS bool[]), CAST(:job_handles AS json[])
        ) AS j (id, round, tool_use_id, name, kind, input, deadline, reports, handle)
        ON CONFLICT DO NOTHING
    )
"""
_COUNT_JOBS = f"""
    counted AS (
        UPDATE turns SET asked = :asked, declined = CASE WHEN others.ids IS NULL THEN declined
            ELSE coalesce(declined, '{{}}') || others.ids END
        FROM fenced, (SELECT array_agg(id) AS ids FROM replicas WHERE NOT runs_jobs) AS others
        WHERE turns.id = fenced.id
    )
    SELECT whole, pg_notify({CHANNEL}, '{JOBS}') FROM held
"""
_NEW_JOBS = contents.JOBS.named(turn_id="turn", input="job_inputs")
START_JOBS = Statement(f"{_fence()}, started AS ({_START_CALLS}), {_START_JOBS}, {_COUNT_JOBS}", seals=[_NEW_JOBS])
# The result of the call is stored with the job. `tool_calls` has no row of the call, which never runs inside the turn.
START_REPORTS = Statement(
    f"{_fence()}, results AS ({INSERT_BLOCKS}), {_START_JOBS}, {_COUNT_JOBS}", seals=[NEW_BLOCKS, _NEW_JOBS]
)

START_CALLS = Statement(_fence() + f", started AS ({_START_CALLS}) SELECT whole FROM held")

# If a call has started before the seal of its round, it has no row yet, and nothing is stored.
STORE_PRELIMINARY = Statement(
    _fence()
    + """
    , stored AS (
        UPDATE tool_calls SET preliminary = CAST(:preliminary AS json) FROM fenced
        WHERE turn_id = fenced.id AND round = :round AND tool_use_id = :tool_use_id AND state = 'started'
    )
    SELECT whole FROM held
    """,
    seals=[CALLS.named(turn_id="turn")],
)

_ASK = """
    asked AS (
        INSERT INTO asks
            (turn_id, round, tool_use_id, name, kind, digest, attempt, expires_at, tool_digest, question,
             answer, approvers, answered_at)
        SELECT fenced.id, a.round, a.tool_use_id, a.name, a.kind, a.digest, a.attempt, a.expires_at, a.tool_digest,
            a.question, a.answer,
            CASE WHEN a.approvers IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(a.approvers)) END,
            CASE WHEN a.answer IS NOT NULL THEN now() END
        FROM fenced, unnest(
            CAST(:ask_rounds AS int[]), CAST(:asked_calls AS text[]), CAST(:asked_names AS text[]),
            CAST(:kinds AS text[]), CAST(:digests AS text[]), CAST(:ask_attempts AS int[]),
            CAST(:expiries AS timestamptz[]), CAST(:tool_digests AS text[]), CAST(:questions AS json[]),
            CAST(:answers AS json[]), CAST(:approvers AS json[])
        ) AS a (
            round, tool_use_id, name, kind, digest, attempt, expires_at, tool_digest, question, answer, approvers
        )
        ON CONFLICT DO NOTHING
    ), counted AS (
        UPDATE turns SET asked = :asked FROM fenced WHERE turns.id = fenced.id
    )
"""
_NEW_ASKS = ASKS.named(
    turn_id="turn", round="ask_rounds", tool_use_id="asked_calls", question="questions", answer="answers"
)
ASK = Statement(f"{_fence()}, {_ASK} SELECT whole FROM held", seals=[_NEW_ASKS])
# The call was refused before its execution, so the row that records its start is deleted.
ASK_TO_SIGN_IN = Statement(
    f"""
    {_fence()}, {_ASK}, forgotten AS (
        DELETE FROM tool_calls USING fenced
        WHERE turn_id = fenced.id AND round = :round AND tool_use_id = :tool_use_id AND state = 'started'
    )
    SELECT whole FROM held
    """,
    seals=[_NEW_ASKS],
)

# WAIT and END_TURN put the turn back into the queue if an answer, a steer or an outcome has arrived that the run does
# not know. Both may be repeated after a lost answer, so both accept turns in the statuses that they write. WAIT keeps a
# queued turn in the queue, because a takeover may have queued it. An unapplied steer came before the asks, because a
# later steer would have answered them. So the steer counts as the answer to these asks. Steers do not stop a job: as
# with a tool inside the turn, the turn applies steers after the end of the job. A steer may be older than the question
# that a job asks, so it does not answer the question. A report answers nothing.
WAIT = Statement(
    _fence(
        "attempt = :attempt AND status IN ('running', 'waiting', 'queued')",
        columns=f"""
            id, EXISTS (SELECT FROM steers WHERE turn_id = turns.id AND taken_at IS NULL AND NOT is_report)
            AND EXISTS (SELECT FROM asks WHERE turn_id = turns.id AND answer IS NULL AND NOT {IS_OF_JOB}) AS spoken
        """,
    )
    + f"""
    , superseded AS (
        UPDATE asks SET answer = CAST(:superseded AS json), answered_at = now()
        FROM fenced WHERE turn_id = fenced.id AND answer IS NULL AND spoken AND NOT {IS_OF_JOB}
    ), paused AS (
        UPDATE turns
        SET replica = NULL, status = CASE
            WHEN status = 'queued' OR spoken OR arrivals > :arrivals OR cancel_requested THEN 'queued' ELSE 'waiting'
        END
        FROM fenced WHERE turns.id = fenced.id
        RETURNING status
    )
    SELECT held.whole, paused.status FROM held LEFT JOIN paused ON true
    """
)

_TAKE_STEERS = """
    taken AS (
        UPDATE steers SET taken_at = coalesce(taken_at, now()) FROM fenced
        WHERE steers.id = ANY(CAST(:steers AS uuid[]))
    )
"""
# A report has the id of its job. The row of the job may be missing, because the turn of the call can be deleted.
_NOTE_DELIVERY = """
    noted AS (
        UPDATE jobs SET delivered_round = :applied_round FROM fenced
        WHERE jobs.id = ANY(CAST(:steers AS uuid[])) AND reports
    )
"""
# Applies only unchanged steers, because users may edit or withdraw steers under the lock of the turn. An earlier
# statement takes this lock, so that this statement sees the steers as they are under the lock.
_ARE_FRESH = """(
    SELECT count(*) = cardinality(CAST(:steers AS uuid[])) FROM steers JOIN unnest(
        CAST(:steers AS uuid[]), CAST(:stored AS text[])
    ) AS read (steer, stored) ON id = steer AND blocks::text = stored
) AS fresh"""
APPLY_STEERS = _writes(
    _fence(columns=f"id, {_ARE_FRESH}", writes="whole AND fresh")
    + f", {_TAKE_STEERS}, {_NOTE_DELIVERY}, applied AS ({INSERT_BLOCKS}) SELECT whole, fresh FROM held",
)

_SETTLED = f"""
    {_fence()}, settled AS (
        UPDATE tool_calls SET state = c.state, settled_at = now(), attempt = :attempt
        FROM fenced, unnest(CAST(:block_rounds AS int[]), CAST(:tool_use_ids AS text[]), CAST(:states AS text[]))
            AS c (round, tool_use_id, state)
        WHERE turn_id = fenced.id AND tool_calls.round = c.round AND tool_calls.tool_use_id = c.tool_use_id
    ), progress AS (
        UPDATE turns SET recoveries = 0
        FROM fenced WHERE turns.id = fenced.id AND recoveries > 0 AND 'settled' = ANY(CAST(:states AS text[]))
    ), results AS ({INSERT_BLOCKS})
"""
SETTLE_CALLS = _writes(_SETTLED + " SELECT whole FROM held")
# Any result of a call settles the call's job, and the job's runner stops.
SETTLE_JOBS = _writes(
    f"""
    {_SETTLED}, over AS (
        UPDATE jobs SET settled_at = now(), replica = NULL
        FROM fenced, unnest(CAST(:block_rounds AS int[]), CAST(:tool_use_ids AS text[])) AS c (round, tool_use_id)
        WHERE turn_id = fenced.id AND jobs.round = c.round AND jobs.tool_use_id = c.tool_use_id AND settled_at IS NULL
        RETURNING jobs.id
    ), notified AS (
        SELECT pg_notify({CHANNEL}, '{JOBS}') FROM (SELECT FROM over LIMIT 1) AS any_job
    )
    SELECT whole, (SELECT count(*) FROM notified) FROM held
    """,
)

_END_FENCE = _fence(
    "attempt = :attempt AND status IN ('running', :status)",
    columns="id, chat_id, status = 'running' AND arrivals > :arrivals AS goes_on, turns.xmin AS version",
)
# A message that follows the turn updates the turn's row (MARK_FOLLOWED). If the message was committed after the
# snapshot of this statement, only the version of the locked row shows it: the row is newer than in the snapshot.
_ENDED = """
    , ended AS (
        UPDATE turns
        SET status = CASE WHEN goes_on THEN 'queued' ELSE :status END,
            stop_reason = CASE WHEN goes_on THEN NULL ELSE :turn_stop_reason END,
            error = CASE WHEN goes_on THEN NULL ELSE CAST(:error AS json) END,
            ended_at = CASE WHEN goes_on THEN NULL ELSE coalesce(ended_at, now()) END,
            usage = CAST(:turn_usage AS json), recoveries = :recoveries, replica = NULL,
            queue_owner = CASE WHEN goes_on THEN queue_owner END
        FROM fenced WHERE turns.id = fenced.id
        RETURNING turns.ended_at, EXISTS (
            SELECT FROM turns AS next WHERE next.chat_id = turns.chat_id AND next.parent_id = turns.id
        ) OR fenced.version <> (SELECT as_seen.xmin FROM turns AS as_seen WHERE as_seen.id = turns.id) AS followed
    )
    SELECT held.whole, ended.ended_at, ended.followed FROM held LEFT JOIN ended ON true
"""
END_TURN = Statement(_END_FENCE + _CLEAR_TEXT + _ENDED)
# Ends a turn right after its last complete reply: one commit contains the last block, the seal and the end.
SEAL_AND_END = _writes(_END_FENCE + _SEALED + _ENDED)

# Does not check the status, because hooks also run after the end of a turn. The count is a parameter, so that the write
# can be repeated.
COUNT_HOOK_FAILURES = Statement(
    "UPDATE turns SET hook_failures = :count WHERE id = :turn AND attempt = :attempt RETURNING id"
)

RELEASE_TURN = Statement(
    _fence("attempt = :attempt AND status IN ('running', 'queued')")
    + f"""
    , begun AS ({INSERT_ROUNDS}), released AS (
        UPDATE turns SET status = 'queued', replica = NULL
        FROM fenced WHERE turns.id = fenced.id
    )
    SELECT whole FROM held
    """
)

# REGAIN, FORGET_BLOCKS and RESTORE restore the turn after lost commits to the state that its run knows. The row must
# have an attempt of the run's own lineage (turnstream.domain.turns.Turn.has_had). Blocks that the run does not know
# belong to a voided round.
REGAIN = Statement(
    """
    UPDATE turns SET attempt = :attempt, lineage = CAST(:lineage AS int[])
    WHERE id = :turn AND status = 'running' AND replica = :replica
      AND (attempt <= coalesce((CAST(:lineage AS int[]))[1], :attempt) OR attempt = ANY(CAST(:lineage AS int[])))
    RETURNING id
    """
)
FORGET_BLOCKS = Statement(
    """
    DELETE FROM blocks WHERE turn_id = :turn AND (index, attempt) NOT IN (
        SELECT * FROM unnest(CAST(:indexes AS int[]), CAST(:attempts AS int[]))
    )
    RETURNING index
    """
)
RESTORE = Statement(
    f"""
    WITH fenced AS (SELECT id, chat_id FROM turns WHERE id = :turn)
    {_CHARGE_ROUNDS}, blocks_again AS ({INSERT_BLOCKS}), rounds_again AS ({INSERT_ROUNDS}), {_ASK}, {_TAKE_STEERS},
    started AS ({_START_CALLS}), {_START_JOBS}
    SELECT id FROM fenced
    """,
    seals=[NEW_BLOCKS, _NEW_ASKS, _NEW_JOBS],
)


@dataclass(frozen=True, slots=True)
class SettledCall:
    """The result of a call as a block, and the call's state. `whole` is the full text if the block has only a part."""

    result: Block
    state: CallState
    whole: str | None = None


@dataclass(frozen=True, slots=True)
class NewJob:
    """The job of `call`, which is stopped at the `deadline`. `input` is JSON text. The turn does not wait for a job
    that `reports`. If the job has a `handle`, which is JSON text, it began inside its turn.
    """

    id: UUID
    call: Block
    kind: JobKind
    input: str
    deadline: datetime
    reports: bool = False
    handle: str | None = None


class Records:
    """The writes of one attempt at one turn. Each write is a separate transaction, and raises ClaimLost if the claim is
    lost.

    While Postgres is unavailable the writes wait. If a write is repeated after a lost answer, it has no further effect.
    `known` returns the turn with all earlier writes; the next write first repeats the writes that Postgres has lost.
    """

    def __init__(self, database: Database, replica: UUID, known: Callable[[], Turn]) -> None:
        self._database = database
        self._replica = replica
        self._known = known
        self._turn, self.attempt = known().id, known().attempt
        self._started: list[Block] = []
        self._jobs: list[NewJob] = []

    async def close_blocks(self, blocks: Sequence[Block], begun: Sequence[Round] = ()) -> None:
        """Stores closed blocks, and the `begun` round, if any."""
        await self._write(CLOSE_BLOCKS, **self._columns(begun), **columns_of(blocks))

    async def seal_round(
        self, round: Round, unwritten: Sequence[Block], turn: Turn, starting: Sequence[Block] = ()
    ) -> None:
        """Seals a round. `unwritten` are its blocks without a row; `turn` has the new sums. Records the start of the
        calls `starting`.
        """
        sealed = {**_sums(turn), **self._sealed(round, turn), **columns_of(unwritten), **_ledger_of(starting)}
        await self._write(SEAL_ROUND, **sealed)
        self._started.extend(starting)

    async def void_round(self, round: Round, turn: Turn) -> int:
        """Deletes an unsealed round and starts the next attempt. Returns the number of that attempt."""
        known = self._known()
        kept = replace(known, blocks=tuple(block for block in known.blocks if block.round != round.number))
        values: dict[str, Any] = {
            **_fenced_by(kept),
            **_sums(turn),
            **self._sealed(round, turn),
            "replica": self._replica,
            "number": round.number,
            "round_attempt": round.attempt,
            "next_attempt": next_attempt(self.attempt),
        }
        await self._until_whole(lambda: self._write_locked(VOID_ROUND, values))
        self.attempt = values["next_attempt"]
        return self.attempt

    async def _write_locked(self, statement: Statement, values: Mapping[str, Any]) -> Row | None:
        """Locks the turn, and executes a statement with a fence, which thus sees all earlier commits."""
        async with self._database.transaction() as connection:
            await connection.row(LOCK_TURN, turn=self._turn)
            return await connection.row(statement, turn=self._turn, attempt=self.attempt, **values)

    async def start_calls(self, calls: Sequence[Block]) -> None:
        await self._write(START_CALLS, **_ledger_of(calls))
        self._started.extend(calls)

    async def store_preliminary(self, output: PreliminaryOutput) -> None:
        shown = to_json({"text": output.text, "data": output.data})
        await self._write(STORE_PRELIMINARY, round=output.round, tool_use_id=output.tool_use_id, preliminary=shown)

    async def ask(self, asks: Sequence[Ask], asked: int) -> None:
        """Stores the asks of one round. `asked` is the number of all asks and jobs of the turn, these asks included."""
        await self._write(ASK, **_columns_of_asks(asks), asked=asked)

    async def ask_to_sign_in(self, call: Block, ask: Ask, asked: int) -> None:
        """Stores the ask of a call that was recorded as started, but did not run."""
        named = {"round": call.round, "tool_use_id": call.tool_use_id}
        await self._write(ASK_TO_SIGN_IN, **_columns_of_asks([ask]), **named, asked=asked)
        self._started = [each for each in self._started if each.key != call.key]

    async def start_jobs(self, jobs: Sequence[NewJob], asked: int) -> None:
        """Stores the jobs of calls. `asked` is the number of all asks and jobs of the turn, these jobs included."""
        calls = [job.call for job in jobs]
        await self._write(START_JOBS, **_ledger_of(calls), **_columns_of_jobs(jobs), asked=asked)
        self._jobs.extend(jobs)

    async def start_reports(self, jobs: Sequence[NewJob], results: Sequence[Block], asked: int) -> None:
        """Stores jobs that report, and the preliminary results of their calls."""
        await self._write(START_REPORTS, **columns_of(results), **_columns_of_jobs(jobs), asked=asked)
        self._jobs.extend(jobs)

    async def settle_calls(self, calls: Sequence[SettledCall]) -> None:
        results = [call.result for call in calls]
        assert all(result.type == TOOL_RESULT for result in results)
        columns = columns_of(results) | {"wholes": [call.whole for call in calls]}
        jobs = {job.key for job in self._known().jobs}
        statement = SETTLE_JOBS if any(result.key in jobs for result in results) else SETTLE_CALLS
        await self._write(statement, states=[call.state for call in calls], **columns)

    async def apply_steers(self, blocks: Sequence[Block], steers: Sequence[Steer]) -> bool:
        """Applies the steers as blocks of the turn. Returns False without a write if a steer has changed."""
        values = {
            **_fenced_by(self._known()),
            "steers": [steer.id for steer in steers],
            "stored": [steer.stored for steer in steers],
            "applied_round": blocks[0].round if blocks else 0,
            **columns_of(blocks),
        }
        is_fresh: bool = (await self._until_whole(lambda: self._write_locked(APPLY_STEERS, values)))["fresh"]
        return is_fresh

    async def wait(self, arrivals: int) -> Status:
        """Lets the turn wait. Puts it back into the queue instead if `arrivals` does not count all arrivals, or if a
        steer came before the asks. Returns the new status.
        """
        row = await self._write(WAIT, arrivals=arrivals, superseded=to_json(AskAnswer("superseded")))
        status: Status = row["status"]
        return status

    async def end(self, turn: Turn) -> tuple[datetime | None, bool]:
        """Ends the turn. Returns the time of the end, and whether another turn follows. The time is None if the turn
        went back into the queue, because `turn` does not count all arrivals.
        """
        row = await self._write(END_TURN, **_sums(turn), **_ended(turn))
        return row["ended_at"], row["followed"]

    async def seal_and_end(self, round: Round, unwritten: Sequence[Block], turn: Turn) -> tuple[datetime | None, bool]:
        """Seals the last round as `seal_round` does, and ends the turn as `end` does."""
        row = await self._write(
            SEAL_AND_END, **_sums(turn), **self._sealed(round, turn), **_ended(turn), **columns_of(unwritten)
        )
        return row["ended_at"], row["followed"]

    async def count_hook_failures(self, count: int) -> None:
        counting = {"turn": self._turn, "attempt": self.attempt, "count": count}
        if await retry_while_unavailable(lambda: self._database.row(COUNT_HOOK_FAILURES, **counting)) is None:
            raise self._lost()

    async def release(self, open_block: Block | None, begun: Sequence[Round] = ()) -> None:
        """Puts the turn back into the queue. Stores the `begun` round and the text of `open_block`, if any."""
        if block := open_block:
            call, name = block.tool_use_id, block.name
            whole = JournalEntry(
                self._turn, self.attempt, block.index, 0, block.round, block.type, block.text, call, name
            )
            await retry_while_unavailable(lambda: OpenTexts(self._database).store([whole]))
        await self._write(RELEASE_TURN, **self._columns(begun))

    async def _write(self, statement: Statement, **values: object) -> Row:
        """Executes a statement that begins with a fence."""
        fenced = {"turn": self._turn, "attempt": self.attempt, **_fenced_by(self._known())}
        return await self._until_whole(lambda: self._database.row(statement, **fenced, **values))

    async def _until_whole(self, write: Callable[[], Awaitable[Row | None]]) -> Row:
        while (row := await retry_while_unavailable(write)) is None or not row["whole"]:
            await retry_while_unavailable(self._restore)
        return row

    async def _restore(self) -> None:
        """Restores the rows to the state that this run knows, if the run still has the claim."""
        turn, replica = self._known(), self._replica
        done = [round for round in turn.rounds if round.sealed or round.voided]
        settled = {block.key for block in turn.blocks if block.type == TOOL_RESULT}
        jobs = [job for job in self._jobs if job.reports or job.call.key not in settled]
        running = [call for call in (*self._started, *(job.call for job in jobs)) if call.key not in settled]
        async with self._database.transaction() as connection:
            regained = await connection.row(
                REGAIN, turn=turn.id, attempt=self.attempt, lineage=turn.lineage or None, replica=replica
            )
            if regained is None:
                raise self._lost()
            log.error("turn.restored", blocks=len(turn.blocks), rounds=len(done))
            await connection.row(FORGET_BLOCKS, turn=turn.id, **columns_of(turn.blocks))
            await connection.row(
                RESTORE,
                turn=turn.id,
                attempt=self.attempt,
                asked=len(turn.asks) + len(turn.jobs),
                steers=[from_json(block.notes)["steer"] for block in turn.blocks if block.type in STEERED],
                **self._columns(turn.rounds),
                **columns_of(turn.blocks),
                **columns_of_charges(charges_of(done, turn), root_of(turn)),
                **_columns_of_asks(turn.asks),
                **_ledger_of(running),
                **_columns_of_jobs(jobs, runs=1),  # a runner may have begun these jobs
            )

    def _sealed(self, round: Round, turn: Turn) -> dict[str, object]:
        return {**self._columns([round]), **columns_of_charges(charges_of([round], turn), root_of(turn))}

    def _columns(self, rounds: Sequence[Round]) -> dict[str, Sequence[object]]:
        return columns_of_rounds([self._turn] * len(rounds), rounds)

    def _lost(self) -> ClaimLost:
        return ClaimLost(f"turn {self._turn} is no longer in attempt {self.attempt}")


async def begin_rounds(database: Database, begun: Sequence[tuple[Turn, Round]]) -> Collection[UUID]:
    """Stores the begun rounds of many turns. Returns the turns whose round is stored. Each other turn has a newer
    attempt, has lost writes, or is locked by another statement.
    """
    turns = [turn for turn, _ in begun]
    rounds = columns_of_rounds([turn.id for turn in turns], [round for _, round in begun])
    held = {name: [_fenced_by(turn)[name] for turn in turns] for name in ("held_blocks", "held_rounds", "held_sealed")}
    return {row["id"] for row in await database.rows(BEGIN_ROUNDS, **rounds, **held)}


def _fenced_by(turn: Turn) -> dict[str, int]:
    """Returns the minimum numbers of blocks, rounds and asks in the rows of the turn."""
    return {
        "held_blocks": len(turn.blocks),
        "held_rounds": sum(round.sealed or round.voided for round in turn.rounds),
        "held_sealed": sum(round.sealed for round in turn.rounds),
        # Jobs, not the run, write the questions of jobs.
        "held_asks": sum(not ask.is_of_job for ask in turn.asks) + len(turn.jobs),
    }


def _columns_of_asks(asks: Sequence[Ask]) -> dict[str, Sequence[object]]:
    return {
        "ask_rounds": [ask.round for ask in asks],
        "asked_calls": [ask.tool_use_id for ask in asks],
        "asked_names": [ask.name for ask in asks],
        "kinds": [ask.kind for ask in asks],
        "digests": [ask.digest for ask in asks],
        "ask_attempts": [ask.attempt for ask in asks],
        "expiries": [ask.expires_at for ask in asks],
        "tool_digests": [ask.tool_digest for ask in asks],
        # JSON, because Postgres would turn nested lists into a two-dimensional array.
        "approvers": [to_json(ask.approvers) if ask.approvers else None for ask in asks],
        "questions": [ask.question for ask in asks],
        "answers": [None if ask.answer is None else to_json(ask.answer) for ask in asks],
    }


def _columns_of_jobs(jobs: Sequence[NewJob], runs: int = 0) -> dict[str, object]:
    return {
        "job_ids": [job.id for job in jobs],
        "job_rounds": [job.call.round for job in jobs],
        "job_calls": [job.call.tool_use_id for job in jobs],
        "job_names": [job.call.name for job in jobs],
        "job_kinds": [job.kind for job in jobs],
        "job_inputs": [job.input for job in jobs],
        "deadlines": [job.deadline for job in jobs],
        "job_reports": [job.reports for job in jobs],
        "job_handles": [job.handle for job in jobs],
        "job_runs": runs,
    }


def _ledger_of(calls: Sequence[Block]) -> dict[str, object]:
    return {
        "call_rounds": [call.round for call in calls],
        "call_ids": [call.tool_use_id for call in calls],
        "call_names": [call.name for call in calls],
    }


def _sums(turn: Turn) -> dict[str, object]:
    return {"turn_usage": to_json(turn.usage), "recoveries": turn.recoveries}


def _ended(turn: Turn) -> dict[str, object]:
    return {
        "arrivals": turn.arrivals,
        "status": turn.status,
        "turn_stop_reason": turn.stop_reason,
        "error": to_json(turn.error) if turn.error else None,
    }
