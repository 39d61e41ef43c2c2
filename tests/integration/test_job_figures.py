"""Figures of jobs: the memory of waiting turns, the cost of a job, how long another owner waits, and the cost of a turn
without jobs. Times and memory are recorded; assertions use only counts.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import asyncpg
import pytest

from tests.integration.test_jobs_at_scale import JOBS_OF_EACH, WAITING, load
from tests.support.harness import Harness, Replica
from turnstream.extensions.jobs import report_rows, stopped_rows
from turnstream.extensions.jobs import rows as job_rows
from turnstream.scripted import ScriptedProvider, message_of, text
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.runs import record
from turnstream.storage.runs.session import JOBS
from turnstream.tools.tool import tool

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

OF_JOBS = {
    statement: name
    for module in (job_rows, report_rows, stopped_rows)
    for name, statement in vars(module).items()
    if isinstance(statement, Statement)
}
OF_TURNS = {statement: name for name, statement in vars(record).items() if isinstance(statement, Statement)}
SETTLED = "SELECT count(*) FROM jobs WHERE settled_at IS NOT NULL"
OF_BOB = """
WITH turn AS (
    UPDATE turns SET queue_owner = 'bob' WHERE id = (
        SELECT id FROM turns WHERE status = 'waiting'
          AND NOT EXISTS (SELECT FROM jobs WHERE turn_id = turns.id AND started_at IS NOT NULL) LIMIT 1
    ) RETURNING id
)
UPDATE jobs SET queue_owner = 'bob', due_at = clock_timestamp() FROM turn WHERE turn_id = turn.id
"""
STARTED = "SELECT extract(epoch FROM started_at - due_at) FROM jobs WHERE queue_owner = 'bob' AND started_at >= due_at"
SLOTS = 100


@tool(background=True)
async def dig() -> str:
    """Dig."""
    await asyncio.sleep(0.02)
    return "a hole"


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[Statement]:
    """Counts how often each statement is executed outside of transactions."""
    counts, rows = Counter[Statement](), Database.rows

    async def counted(database: Database, statement: Statement, **values: Any) -> Sequence[Row]:
        counts[statement] += 1
        return await rows(database, statement, **values)

    monkeypatch.setattr(Database, "rows", counted)
    return counts


def memory() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def provider() -> ScriptedProvider:
    return ScriptedProvider(lambda _: message_of(text("Ahoy!")))


async def test_waiting_turns_hold_nothing_and_another_owner_is_served_among_overdue_jobs(
    harness: Harness, database_url: str, statements: Counter[Statement], record_property: Callable[[str, object], None]
) -> None:
    await harness.ask(tools=[dig])
    connection = await asyncpg.connect(database_url)
    try:
        async with harness.replica(provider(), [dig], listens=True, most_jobs=SLOTS) as replica:
            gc.collect()
            before, tasks = memory(), len(asyncio.all_tasks())
            await load(connection, "dig", "infinity")
            await notify(connection)
            assert len(asyncio.all_tasks()) <= tasks
            assert replica.directory.here() == []
            record_property(f"bytes of memory for each of {WAITING:,} waiting turns", (memory() - before) // WAITING)

            statements.clear()
            await connection.execute("UPDATE jobs SET due_at = now() - interval '1 hour'")
            await notify(connection)
            while await connection.fetchval(SETTLED) < SLOTS:  # noqa: ASYNC110, rows have no event
                await asyncio.sleep(0.005)
            ahead = await connection.fetchval(SETTLED)
            await connection.execute(OF_BOB)
            await notify(connection)
            while (waited := await connection.fetchval(STARTED)) is None:  # noqa: ASYNC110, rows have no event
                await asyncio.sleep(0.005)
            overtaken = WAITING * JOBS_OF_EACH - await connection.fetchval(SETTLED)
            record_property("seconds from due to claimed for another owner", float(waited))
            record_property("overdue jobs that it overtook", overtaken)
            assert overtaken > WAITING * JOBS_OF_EACH / 2, f"{ahead} were settled before"
            while await connection.fetchval(SETTLED) < WAITING:  # noqa: ASYNC110, rows have no event
                await asyncio.sleep(0.02)
            done = await connection.fetchval(SETTLED)
            each = {name: statements[statement] / done for statement, name in OF_JOBS.items() if statements[statement]}
            record_property("statements for each job", {name: round(number, 2) for name, number in each.items()})
            assert each["SETTLE_JOB"] <= (done + SLOTS) / done, "its end is one statement"
            assert sum(each.values()) < 3
            await replica.kill()  # the test does not wait for the other jobs
    finally:
        await connection.close()


async def test_a_turn_without_jobs_costs_the_same_beside_thousands_of_jobs(
    harness: Harness, database_url: str, statements: Counter[Statement], record_property: Callable[[str, object], None]
) -> None:
    await harness.ask(tools=[dig])
    connection = await asyncpg.connect(database_url)
    try:
        async with harness.replica(provider(), [dig], listens=True) as replica:
            await plain_turns(harness, replica, 5, statements)  # the first turns include one-time preparations
            alone, counted_alone = await plain_turns(harness, replica, 40, statements)
            await load(connection, "dig", "infinity")
            beside, counted_beside = await plain_turns(harness, replica, 40, statements)
            assert counted_beside == counted_alone
            record_property("seconds of a turn without jobs, alone and beside 5,000 jobs", (alone, beside))
            record_property("ratio of both", round(beside / alone, 2))
    finally:
        await connection.close()


async def plain_turns(
    harness: Harness, replica: Replica, number: int, statements: Counter[Statement]
) -> tuple[float, Counter[str]]:
    """Runs turns without jobs. Returns the median of their seconds, and the counts of all their writes."""
    statements.clear()
    seconds = []
    for _ in range(number):
        asked = await harness.ask()
        began = perf_counter()
        await harness.finish(replica, asked)
        seconds.append(perf_counter() - began)
    del statements[record.BEGIN_ROUNDS]  # its count is random: turns that begin in the same tick share the statement
    return median(seconds), Counter({name: statements[statement] for statement, name in OF_TURNS.items()})


async def notify(connection: asyncpg.Connection) -> None:
    await connection.execute(f"SELECT pg_notify('turnstream', '{JOBS}')")
