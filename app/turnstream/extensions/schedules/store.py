"""Schedules and their runs. The clock of Postgres determines due ticks.

A claim advances `next_at` and inserts the runs of the ticks in one transaction; the primary key of a run is its
schedule and its tick. A run is then posted with an idempotency key that consists of both. So after a crash in between,
the run is posted again with the same key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from turnstream.domain.errors import NotFound, TooMany
from turnstream.extensions.schedules.rules import Due, Rule, due_at
from turnstream.kit.ids import new_id
from turnstream.storage.contents import SCHEDULES
from turnstream.storage.database import Database, Row, Statement, Transaction
from turnstream.storage.retention import NO_ID, Aged, aged
from turnstream.storage.rows import ENDED_STATUSES

Missed = Literal["run_once", "skip", "report"]

# The newest run of a schedule.
LAST_RUN = """(
        SELECT json_build_object(
            'tick', tick, 'state', state, 'turn', turn_id, 'chat', chat_id, 'missed', missed, 'error', error
        ) FROM schedule_runs WHERE schedule_id = id ORDER BY tick DESC LIMIT 1
    ) AS last_run"""
_COLUMNS = f"""id, owner, name, chat_id, request, cron, every, zone, missed, grace, next_at, paused, failures,
    created_at, {LAST_RUN}"""
GET_NOW = Statement("SELECT now() AS now")
LIST_SCHEDULES = Statement(
    f"SELECT {_COLUMNS} FROM schedules WHERE owner = :owner AND trigger IS NULL ORDER BY created_at, id",
    opens=[SCHEDULES],
)
GET_SCHEDULE = Statement(
    f"SELECT {_COLUMNS} FROM schedules WHERE owner = :owner AND id = :id AND trigger IS NULL", opens=[SCHEDULES]
)
# Two requests of one owner count the owner's schedules one after the other.
LOCK_OWNER = Statement("SELECT pg_advisory_xact_lock(hashtextextended('schedules of ' || :owner, 0))")
COUNT_SCHEDULES = Statement("SELECT count(*) AS count FROM schedules WHERE owner = :owner")
INSERT_SCHEDULE = Statement(
    f"""
    INSERT INTO schedules (id, owner, name, chat_id, request, plan, cron, every, zone, missed, grace, next_at, paused)
    VALUES (:id, :owner, :name, :chat, CAST(:request AS json), :plan, :cron, :every, :zone, :missed, :grace,
        :next_at, CASE WHEN :paused THEN 'person' END)
    RETURNING {_COLUMNS}
    """,
    seals=[SCHEDULES],
    opens=[SCHEDULES],
)
CHANGE_SCHEDULE = Statement(
    f"""
    UPDATE schedules SET name = :name, chat_id = :chat, request = CAST(:request AS json), plan = :plan, cron = :cron,
        every = :every, zone = :zone, missed = :missed, grace = :grace, next_at = :next_at,
        paused = CASE WHEN :paused THEN coalesce(paused, 'person') END,
        failures = CASE WHEN :paused THEN failures ELSE 0 END
    WHERE owner = :owner AND id = :id AND trigger IS NULL RETURNING {_COLUMNS}
    """,
    seals=[SCHEDULES],
    opens=[SCHEDULES],
)
DELETE_SCHEDULE = Statement("DELETE FROM schedules WHERE owner = :owner AND id = :id AND trigger IS NULL RETURNING id")
LIST_RUNS = Statement(
    """
    SELECT tick, state, turn_id, chat_id, missed, error FROM schedule_runs
    WHERE owner = :owner AND schedule_id = :id ORDER BY tick DESC LIMIT :limit
    """
)
RUN_NOW = Statement(
    """
    INSERT INTO schedule_runs (schedule_id, tick, owner, state)
    SELECT id, clock_timestamp(), owner, 'pending' FROM schedules
    WHERE owner = :owner AND id = :id AND trigger IS NULL
    RETURNING tick, state, turn_id, chat_id, missed, error
    """
)
_HAS_ENDED = f"state = 'started' AND (turns.id IS NULL OR turns.status IN {ENDED_STATUSES})"
# Each poll of a runner runs this statement alone if nothing is due: the others take seven round trips.
GET_WORK = Statement(
    f"""
    SELECT EXISTS (SELECT FROM schedules WHERE paused IS NULL AND next_at <= now()) AS ticks,
        EXISTS (SELECT FROM schedule_runs WHERE state = 'pending' AND due_at <= now()) AS runs,
        EXISTS (SELECT FROM schedule_runs LEFT JOIN turns ON turns.id = turn_id WHERE {_HAS_ENDED}) AS ended
    """
)
CLAIM_SCHEDULE = Statement(
    """
    SELECT id, owner, cron, every, zone, missed, grace, next_at, now() AS now FROM schedules
    WHERE paused IS NULL AND next_at <= now() ORDER BY next_at FOR UPDATE SKIP LOCKED LIMIT 1
    """
)
# If a change of the rule or of the clock repeats a tick, the tick is not run again.
INSERT_RUNS = Statement(
    """
    INSERT INTO schedule_runs (schedule_id, tick, owner, state, missed)
    SELECT :id, tick, :owner, state, missed
    FROM unnest(CAST(:ticks AS timestamptz[]), CAST(:states AS text[]), CAST(:missed AS int[]))
        AS r (tick, state, missed)
    ON CONFLICT DO NOTHING
    """
)
MOVE_ON = Statement("UPDATE schedules SET next_at = :next_at WHERE id = :id")
# The claim advances the due time, so that another replica posts the run after the lease if this replica dies.
CLAIM_RUNS = Statement(
    """
    WITH due AS (
        SELECT schedule_id, tick FROM schedule_runs WHERE state = 'pending' AND due_at <= now()
        ORDER BY due_at, tick FOR UPDATE SKIP LOCKED LIMIT :limit
    ), claimed AS (
        UPDATE schedule_runs AS run SET due_at = now() + :lease FROM due
        WHERE run.schedule_id = due.schedule_id AND run.tick = due.tick
        RETURNING run.schedule_id, run.tick
    )
    SELECT claimed.tick, schedules.id, schedules.owner, schedules.name, schedules.chat_id, schedules.request,
        schedules.plan, now() - claimed.tick > make_interval(secs => grace) AS late
    FROM claimed JOIN schedules ON schedules.id = claimed.schedule_id ORDER BY claimed.tick
    """
)
RUN_STARTED = Statement(
    """
    UPDATE schedule_runs SET state = 'started', turn_id = :turn, chat_id = :chat
    WHERE schedule_id = :id AND tick = :tick AND state = 'pending'
    """
)
RUN_DELAYED = Statement(
    """
    UPDATE schedule_runs SET due_at = now() + :wait, error = :error
    WHERE schedule_id = :id AND tick = :tick AND state = 'pending'
    """
)
# A run that is refused is over at once; a run that was posted is over when its turn has ended or was deleted. Failures
# in a row are counted in the order of the ticks.
RUN_REFUSED = Statement(
    """
    UPDATE schedule_runs SET state = 'failed', error = :error
    WHERE schedule_id = :id AND tick = :tick AND state = 'pending' RETURNING tick
    """
)
END_RUNS = Statement(
    f"""
    WITH over AS (
        SELECT run.schedule_id, run.tick, turns.status, turns.error->>'message' AS why
        FROM schedule_runs AS run LEFT JOIN turns ON turns.id = run.turn_id
        WHERE {_HAS_ENDED}
        ORDER BY run.tick LIMIT :limit FOR UPDATE OF run SKIP LOCKED
    )
    UPDATE schedule_runs AS run SET state = CASE WHEN status = 'error' THEN 'failed' ELSE 'ended' END, error = why
    FROM over WHERE run.schedule_id = over.schedule_id AND run.tick = over.tick
    RETURNING run.schedule_id, run.tick, run.state
    """
)
COUNT_FAILURES = Statement(
    """
    UPDATE schedules SET failures = CASE WHEN :ended THEN 0 ELSE failures END + :failed,
        paused = CASE
            WHEN CASE WHEN :ended THEN 0 ELSE failures END + :failed >= :most THEN coalesce(paused, 'failures')
            ELSE paused END
    WHERE id = :id RETURNING failures, paused
    """
)

OLD_RUNS: Aged = aged(
    "schedule_runs",
    {"schedule_id": NO_ID, "tick": datetime(1970, 1, 1, tzinfo=UTC)},
    "CASE WHEN state IN ('ended', 'failed', 'missed') THEN tick END",
)


@dataclass(frozen=True, slots=True)
class ScheduleDraft:
    """A schedule as its owner requests it. `request` is the JSON of the message."""

    name: str
    chat: UUID | None
    request: str
    plan: str | None
    rule: Rule
    missed: Missed
    grace: float
    next_at: datetime
    paused: bool

    @property
    def columns(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "chat": self.chat,
            "request": self.request,
            "plan": self.plan,
            "cron": self.rule.cron,
            "every": self.rule.every,
            "zone": self.rule.zone,
            "missed": self.missed,
            "grace": self.grace,
            "next_at": self.next_at,
            "paused": self.paused,
        }


@dataclass(frozen=True, slots=True)
class PendingRun:
    """A tick whose turn must be posted. A `late` run that exceeds a limit is not tried again."""

    schedule: UUID
    tick: datetime
    owner: str
    name: str
    chat: UUID | None
    request: str
    plan: str | None
    late: bool


class Schedules:
    """The schedules of owners, for the API."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def now(self) -> datetime:
        row = await self._database.row(GET_NOW)
        assert row is not None
        now: datetime = row["now"]
        return now

    async def list(self, owner: str) -> Sequence[Row]:
        return await self._database.rows(LIST_SCHEDULES, owner=owner)

    async def get(self, owner: str, id: UUID) -> Row:
        return _found(await self._database.row(GET_SCHEDULE, owner=owner, id=id), id)

    async def create(self, owner: str, draft: ScheduleDraft, most: int) -> Row:
        """Creates a schedule. Raises TooMany if the owner already has `most` schedules and triggers."""
        async with self._database.transaction() as transaction:
            await check_room(transaction, owner, most)
            row = await transaction.row(INSERT_SCHEDULE, id=new_id(), owner=owner, **draft.columns)
        assert row is not None
        return row

    async def change(self, owner: str, id: UUID, draft: ScheduleDraft) -> Row:
        return _found(await self._database.row(CHANGE_SCHEDULE, owner=owner, id=id, **draft.columns), id)

    async def delete(self, owner: str, id: UUID) -> None:
        _found(await self._database.row(DELETE_SCHEDULE, owner=owner, id=id), id)

    async def runs(self, owner: str, id: UUID, limit: int) -> Sequence[Row]:
        await self.get(owner, id)
        return await self.runs_of(owner, id, limit)

    async def runs_of(self, owner: str, id: UUID, limit: int) -> Sequence[Row]:
        return await self._database.rows(LIST_RUNS, owner=owner, id=id, limit=limit)

    async def run_now(self, owner: str, id: UUID) -> Row:
        return _found(await self._database.row(RUN_NOW, owner=owner, id=id), id)


@dataclass(frozen=True, slots=True)
class DueWork:
    """Whether a schedule has a due tick, a run is to be posted, and the turn of a run has ended."""

    ticks: bool
    runs: bool
    ended: bool


class DueSchedules:
    """The schedules of all owners, for the runner of a replica."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def work(self) -> DueWork:
        row = await self._database.row(GET_WORK)
        assert row is not None
        return DueWork(row["ticks"], row["runs"], row["ended"])

    async def claim(self) -> tuple[UUID, Due] | None:
        """Inserts the runs of one due schedule, and advances its due time. Returns None if no schedule is due."""
        async with self._database.transaction() as transaction:
            row = await transaction.row(CLAIM_SCHEDULE)
            if row is None:
                return None
            due = due_at(rule_of(row), row["next_at"], row["now"], row["grace"])
            runs = [(tick, "pending", 0) for tick in due.run]
            if due.last_missed is not None and row["missed"] == "run_once":
                runs.append((due.last_missed, "pending", due.missed - 1))
            elif due.last_missed is not None and row["missed"] == "report":
                runs.append((due.last_missed, "missed", due.missed))
            ticks, states, missed = (list(column) for column in zip(*runs, strict=True)) if runs else ([], [], [])
            await transaction.rows(
                INSERT_RUNS, id=row["id"], owner=row["owner"], ticks=ticks, states=states, missed=missed
            )
            await transaction.rows(MOVE_ON, id=row["id"], next_at=due.next)
        return row["id"], due

    async def pending(self, limit: int, lease: float) -> Sequence[PendingRun]:
        rows = await self._database.rows(CLAIM_RUNS, limit=limit, lease=timedelta(seconds=lease))
        return [_pending(row) for row in rows]

    async def opened(self, run: PendingRun) -> PendingRun:
        """Returns the run with its decrypted request. Each run is decrypted alone, so that other runs do not wait for a
        locked key. Raises Conflict and StorageUnavailable.
        """
        if (codec := self._database.codec) is None:
            return run
        row = {"id": run.schedule, "request": run.request}
        (plain,) = await codec.open(SCHEDULES, {"owner": run.owner}, [row])
        return replace(run, request=plain["request"])

    async def started(self, run: PendingRun, turn: UUID, chat: UUID) -> None:
        await self._database.rows(RUN_STARTED, id=run.schedule, tick=run.tick, turn=turn, chat=chat)

    async def delayed(self, run: PendingRun, wait: float, error: str) -> None:
        await self._database.rows(
            RUN_DELAYED, id=run.schedule, tick=run.tick, wait=timedelta(seconds=wait), error=error
        )

    async def refused(self, run: PendingRun, error: str, most: int) -> bool:
        """Stores the refusal of a run. Returns True if the schedule is now paused, after `most` failures in a row."""
        async with self._database.transaction() as transaction:
            if not await transaction.row(RUN_REFUSED, id=run.schedule, tick=run.tick, error=error):
                return False
            row = await transaction.row(COUNT_FAILURES, id=run.schedule, ended=False, failed=1, most=most)
        return row is not None and row["paused"] == "failures" and row["failures"] == most

    async def end_runs(self, limit: int, most: int, note: Callable[[str], None]) -> Sequence[UUID]:
        """Ends the runs whose turns have ended, and returns the schedules that are now paused because of their
        failures.
        """
        paused = []
        async with self._database.transaction() as transaction:
            rows = sorted(await transaction.rows(END_RUNS, limit=limit), key=lambda row: row["tick"])
            for id in sorted({row["schedule_id"] for row in rows}):
                ended, failed = False, 0
                for row in rows:
                    if row["schedule_id"] == id:
                        note(row["state"])
                        ended = ended or row["state"] == "ended"
                        failed = failed + 1 if row["state"] == "failed" else 0
                found = await transaction.row(COUNT_FAILURES, id=id, ended=ended, failed=failed, most=most)
                if found is not None and failed and found["paused"] == "failures":
                    paused.append(id)
        return paused


async def check_room(transaction: Transaction, owner: str, most: int) -> None:
    """Raises TooMany if the owner already has `most` schedules and triggers."""
    await transaction.rows(LOCK_OWNER, owner=owner)
    counted = await transaction.row(COUNT_SCHEDULES, owner=owner)
    assert counted is not None
    if counted["count"] >= most:
        raise TooMany(f"An owner may have at most {most:,} schedules and triggers: delete one first.", 60, "schedules")


def rule_of(row: Row) -> Rule:
    return Rule(row["cron"], row["every"], row["zone"])


def _found(row: Row | None, id: UUID) -> Row:
    if row is None:
        raise NotFound(f"There is no schedule {id}.")
    return row


def _pending(row: Row) -> PendingRun:
    return PendingRun(
        schedule=row["id"],
        tick=row["tick"],
        owner=row["owner"],
        name=row["name"],
        chat=row["chat_id"],
        request=row["request"],
        plan=row["plan"],
        late=row["late"],
    )
