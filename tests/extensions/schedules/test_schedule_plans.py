"""What the runner of each replica asks again and again does not grow with the schedules, nor with their past runs."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from tests.integration.test_plans import check_reads
from tests.support.large_database import Size, load_sql
from tests.support.plans import EXECUTIONS, Execution
from turnstream.extensions.schedules import store
from turnstream.storage.database import Statement

# Ten thousand schedules that are not due, each with five runs of the past. Fifty runs have turns that still wait.
SCHEDULES = """
INSERT INTO schedules (id, owner, name, request, every, zone, missed, grace, next_at)
    SELECT id_of('schedule', number, 0), 'owner-' || number % 90, 'daily', '{}', 86400, 'UTC', 'skip', 60,
        now() + number * interval '1 second' + interval '1 day'
    FROM generate_series(1, 10000) AS number;
INSERT INTO schedule_runs (schedule_id, tick, owner, state, turn_id)
    SELECT id, next_at - day * interval '1 day', owner, 'ended', id_of('assistant', 1, 1)
    FROM schedules, generate_series(2, 6) AS day;
INSERT INTO schedule_runs (schedule_id, tick, owner, state, turn_id)
    SELECT id_of('schedule', number, 0), now(), 'owner-1', 'started', id_of('assistant', number, 1)
    FROM generate_series(1, 50) AS number;
UPDATE turns SET status = 'queued', ended_at = NULL, stop_reason = NULL, queue_owner = 'owner-1'
    WHERE id IN (SELECT turn_id FROM schedule_runs WHERE state = 'started');
"""
CASES: Mapping[str, tuple[Statement, Mapping[str, Any], int]] = {
    "whether anything is due": (store.GET_WORK, {}, 300),  # four pages for each open turn
    "the next due schedule": (store.CLAIM_SCHEDULE, {}, 20),
    "runs to be posted": (store.CLAIM_RUNS, {"limit": 50, "lease": timedelta(seconds=30)}, 20),
    "runs whose turns have ended": (store.END_RUNS, {"limit": 50}, 300),
}


@pytest.fixture(scope="module")
def many_schedules_url(shared_database_url: str) -> str:
    async def load() -> None:
        connection = await asyncpg.connect(shared_database_url)
        await connection.execute(load_sql(Size(chats=5_000, exchanges=1, long_chat=1, recent=1, documents=1)))
        await connection.execute(SCHEDULES)
        await connection.execute("VACUUM ANALYZE")
        await connection.close()

    asyncio.run(load())
    return shared_database_url


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("case", CASES)
async def test_the_runner_reads_only_what_is_due(many_schedules_url: str, case: str, execution: Execution) -> None:
    await check_reads(many_schedules_url, *CASES[case], execution)
