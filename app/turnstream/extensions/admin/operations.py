"""Reads the state of all replicas and owners for operators, and runs the operators' actions. Each action is recorded in
the audit trail.

The figures cover the last hour. Rounds and turns are looked up by the newest calls in the ledger, so older rows are not
read. Of each minute, at most `SAMPLE` calls are looked up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from turnstream.domain.errors import Conflict, NotFound
from turnstream.domain.turns import OPEN, Status
from turnstream.storage.chats.turns import CANCEL_TURN
from turnstream.storage.database import Database, Row, Statement, Transaction
from turnstream.storage.owners.audit import NOTE
from turnstream.storage.rows import to_json
from turnstream.storage.runs.queue import CANCEL, DRAIN, NOTIFY, QUEUED

SAMPLE: Final = 100
_MOST_FAILED: Final = 1000
_MOST_TOOLS: Final = 20

GET_REPLICAS = Statement(
    """
    SELECT id, address, created_at AS since, draining_since,
        extract(epoch FROM lease_until - now())::float AS lease_left, session IN (
            SELECT classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted
        ) AS connected,
        (SELECT count(*) FROM turns WHERE turns.replica = replicas.id AND turns.status = 'running') AS running
    FROM replicas ORDER BY address, id
    """
)
GET_MINUTES = Statement(
    """
    SELECT date_trunc('minute', charged_at) AS at, count(*) AS calls, sum(output_tokens)::bigint AS output_tokens,
        sum(cost)::float AS cost
    FROM charges WHERE charged_at >= now() - interval '1 hour' GROUP BY 1
    """
)
_SAMPLED: Final = f"""
    sampled AS (
        SELECT at, turn_id, model, split_part(call, '.', 1)::int AS number, split_part(call, '.', 2)::int AS attempt
        FROM (
            SELECT date_trunc('minute', charged_at) AS at, turn_id, model, call,
                row_number() OVER (PARTITION BY date_trunc('minute', charged_at) ORDER BY turn_id) AS place
            FROM charges WHERE charged_at >= now() - interval '1 hour' AND kind = 'round'
        ) AS counted
        WHERE place <= {SAMPLE}
    )
"""
# LIMIT forces one lookup per key: without it, Postgres may misjudge the size of the sample and read the whole table.
GET_SAMPLE = Statement(
    f"""
    WITH {_SAMPLED}
    SELECT at, sampled.model, count(*) AS calls,
        count(*) FILTER (WHERE stop_reason IN ('voided', 'interrupted', 'error')) AS cut_off,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY first_text) AS median,
        percentile_cont(0.95) WITHIN GROUP (ORDER BY first_text) AS slow
    FROM sampled CROSS JOIN LATERAL (
        SELECT stop_reason, extract(epoch FROM first_delta_at - started_at)::float AS first_text FROM rounds
        WHERE rounds.turn_id = sampled.turn_id AND rounds.number = sampled.number AND rounds.attempt = sampled.attempt
        LIMIT 1
    ) AS round
    GROUP BY GROUPING SETS ((at), (sampled.model)) ORDER BY calls DESC, sampled.model
    """
)
GET_TOOLS = Statement(
    f"""
    WITH {_SAMPLED}, calls AS (
        SELECT name, state, extract(epoch FROM coalesce(settled_at, now()) - started_at)::float AS seconds
        FROM (SELECT DISTINCT turn_id FROM sampled) AS turn CROSS JOIN LATERAL (
            SELECT * FROM tool_calls WHERE tool_calls.turn_id = turn.turn_id ORDER BY round DESC LIMIT {SAMPLE}
        ) AS call
        WHERE started_at >= now() - interval '1 hour'
    )
    SELECT name, count(*) AS calls, count(*) FILTER (WHERE state = 'started') AS running,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS median, max(seconds) AS slowest
    FROM calls GROUP BY name ORDER BY slowest DESC, name LIMIT {_MOST_TOOLS}
    """
)
GET_FAILURES = Statement(
    f"""
    SELECT at, model, type, count(*) AS turns, max(ended_at) AS last
    FROM (
        SELECT date_trunc('minute', ended_at) AS at, ended_at, request->>'model' AS model, error->>'type' AS type
        FROM turns WHERE status = 'error' AND ended_at >= now() - interval '1 hour'
        ORDER BY ended_at DESC LIMIT {_MOST_FAILED}
    ) AS failed
    GROUP BY GROUPING SETS ((at), (model, type)) ORDER BY turns DESC, model, type
    """
)
FIND_TURN = Statement(
    """
    SELECT turns.id, chat_id, owner, status FROM turns JOIN chats ON chats.id = chat_id
    WHERE turns.id = :turn AND role = 'assistant' FOR NO KEY UPDATE OF turns
    """
)
# The old replica stops its run when it next compares the run with the rows, or at its next write. The number of
# recoveries does not change, because no run has failed.
REQUEUE_TURN = Statement(
    "UPDATE turns SET status = 'queued', replica = NULL WHERE id = :turn AND status = 'running' RETURNING status"
)
DRAIN_REPLICA = Statement(
    """
    UPDATE replicas SET draining_since = coalesce(draining_since, now()) WHERE id = :replica
    RETURNING address, draining_since = now() AS is_first
    """
)


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A registered replica. `connected` is true while its session is alive. `lease_left` is in seconds, and negative if
    the lease has expired. `running` is the number of its running turns.
    """

    id: UUID
    address: str
    since: datetime
    draining_since: datetime | None
    lease_left: float
    connected: bool
    running: int

    @property
    def state(self) -> Literal["alive", "draining", "gone"]:
        if self.lease_left < 0 or not self.connected:
            return "gone"
        return "alive" if self.draining_since is None else "draining"


@dataclass(frozen=True, slots=True)
class MinuteFigures:
    """The charged model calls of one minute. `cost` is None if none of these calls has a price. The times from a call
    to its first text are in seconds, and None if no sampled call returned text. `failed` counts the turns that failed.
    """

    at: datetime
    calls: int
    output_tokens: int
    cost: float | None
    first_text_median: float | None
    first_text_slow: float | None
    failed: int


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Figures of one model's sampled calls: `cut_off` counts the interrupted calls, and the times to the first text are
    in seconds.
    """

    model: str
    calls: int
    cut_off: int
    first_text_median: float | None
    first_text_slow: float | None


@dataclass(frozen=True, slots=True)
class Failures:
    """Counts the turns of one model that failed with one type of error."""

    model: str
    type: str
    turns: int
    last: datetime


@dataclass(frozen=True, slots=True)
class ToolFigures:
    """Figures of one tool's calls in the sampled turns; times are in seconds."""

    name: str
    calls: int
    running: int
    median: float
    slowest: float


@dataclass(frozen=True, slots=True)
class Hour:
    """Figures of the last hour, for all replicas. A minute is omitted if no call and no failed turn ended in it."""

    minutes: Sequence[MinuteFigures]
    models: Sequence[ModelFigures]
    failures: Sequence[Failures]
    tools: Sequence[ToolFigures]


@dataclass(frozen=True, slots=True)
class ActedTurn:
    """A turn as it is after an operator's action."""

    id: UUID
    chat: UUID
    owner: str
    status: Status


class Operations:
    """Reads and acts across all owners, for commands and for callers with the scope `admin`. `actor` is the credential
    of a request; a command passes None, because its database connection already has an actor.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def replicas(self) -> Sequence[ReplicaState]:
        return [ReplicaState(**dict(row)) for row in await self._database.rows(GET_REPLICAS)]

    async def hour(self) -> Hour:
        minutes, sample, failures, tools = [
            await self._database.rows(each) for each in (GET_MINUTES, GET_SAMPLE, GET_FAILURES, GET_TOOLS)
        ]
        return Hour(
            _minutes(minutes, sample, failures),
            [
                ModelFigures(row["model"], row["calls"], row["cut_off"], row["median"], row["slow"])
                for row in sample
                if row["at"] is None
            ],
            [Failures(row["model"], row["type"], row["turns"], row["last"]) for row in failures if row["at"] is None],
            [ToolFigures(**dict(row)) for row in tools],
        )

    async def stop(self, turn: UUID, actor: str | None = None) -> ActedTurn:
        """Requests the cancellation of a turn. A turn that has already ended is returned unchanged. Raises NotFound."""
        async with self._database.transaction() as transaction:
            found = await _found(transaction, turn)
            if found["status"] in OPEN:
                await transaction.rows(CANCEL_TURN, turn=turn, withdraws=False)
                await _note(transaction, "turn.stopped", found, actor)
                await _notify(transaction, f"{CANCEL} {turn}")
            return _acted(await _found(transaction, turn))

    async def requeue(self, turn: UUID, actor: str | None = None) -> ActedTurn:
        """Takes a running turn from its replica and puts it back into the queue. Raises NotFound, and Conflict if the
        turn is not running.
        """
        async with self._database.transaction() as transaction:
            found = await _found(transaction, turn)
            if not await transaction.rows(REQUEUE_TURN, turn=turn):
                raise Conflict(f"Turn {turn} is {found['status']}: only a running turn can be re-queued.")
            await _note(transaction, "turn.requeued", found, actor)
            await _notify(transaction, QUEUED)
            return _acted(await _found(transaction, turn))

    async def drain(self, replica: UUID, actor: str | None = None) -> ReplicaState:
        """Orders a replica to drain. The order is stored in the replica's row, which the replica reads at each renewal
        of its lease. Raises NotFound.
        """
        async with self._database.transaction() as transaction:
            row = await transaction.row(DRAIN_REPLICA, replica=replica)
            if row is None:
                raise NotFound(f"There is no replica {replica}; a restarted process is a new replica.")
            if row["is_first"]:
                detail = {"replica": str(replica), "address": row["address"]}
                values = {"kind": "replica.drained", "owner": None, "actor": actor, "details": [to_json(detail)]}
                await transaction.rows(NOTE, **values)
            await _notify(transaction, f"{DRAIN} {replica}")
            (state,) = [each for each in await transaction.rows(GET_REPLICAS) if each["id"] == replica]
        return ReplicaState(**dict(state))


def _minutes(minutes: Sequence[Row], sample: Sequence[Row], failures: Sequence[Row]) -> Sequence[MinuteFigures]:
    calls, sampled, failed = ({row["at"]: row for row in rows if row["at"]} for rows in (minutes, sample, failures))
    return [
        MinuteFigures(
            at,
            calls[at]["calls"] if at in calls else 0,
            calls[at]["output_tokens"] if at in calls else 0,
            calls[at]["cost"] if at in calls else None,
            sampled[at]["median"] if at in sampled else None,
            sampled[at]["slow"] if at in sampled else None,
            failed[at]["turns"] if at in failed else 0,
        )
        for at in sorted({*calls, *failed})
    ]


async def _found(transaction: Transaction, turn: UUID) -> Row:
    row = await transaction.row(FIND_TURN, turn=turn)
    if row is None:
        raise NotFound(f"There is no assistant turn {turn}.")
    return row


async def _note(transaction: Transaction, kind: str, turn: Row, actor: str | None) -> None:
    detail = {"turn": str(turn["id"]), "chat": str(turn["chat_id"]), "status": turn["status"]}
    await transaction.rows(NOTE, kind=kind, owner=turn["owner"], actor=actor, details=[to_json(detail)])


async def _notify(transaction: Transaction, payload: str) -> None:
    """Notifies all replicas, including this one, when the transaction commits."""
    await transaction.rows(NOTIFY, payload=payload)


def _acted(row: Row) -> ActedTurn:
    return ActedTurn(row["id"], row["chat_id"], row["owner"], row["status"])
