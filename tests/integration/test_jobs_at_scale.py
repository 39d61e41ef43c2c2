"""Many waiting turns with overdue jobs: no owner waits behind the jobs of another owner."""

import asyncpg
import pytest

from tests.support.harness import OWNER, Harness
from turnstream.extensions.jobs.rows import Jobs
from turnstream.kit.ids import new_id
from turnstream.tools.tool import tool

pytestmark = pytest.mark.full

WAITING, JOBS_OF_EACH = 1000, 5
# Turns of one owner that wait, and the jobs of each: all were due an hour ago.
LOAD = f"""
INSERT INTO turns (id, chat_id, parent_id, role, status, request, queue_owner, attempt, started_at)
    SELECT gen_random_uuid(), chat_id, parent_id, role, 'waiting', request, $1, 1, now()
    FROM turns, generate_series(1, {WAITING}) WHERE role = 'assistant'
"""
JOBS = f"""
INSERT INTO jobs (id, turn_id, round, tool_use_id, name, kind, input, deadline, due_at)
    SELECT gen_random_uuid(), id, 1, n::text, 'dig', 'tool', '{{}}',
        now() + interval '1 hour', now() - interval '1 hour'
    FROM turns, generate_series(1, {JOBS_OF_EACH}) AS n WHERE status = 'waiting'
"""


@tool(background=True)
async def dig() -> str:
    """Dig."""
    return "a hole"


async def test_an_owner_is_served_in_the_first_look_before_thousands_of_overdue_jobs_of_another(
    harness: Harness, database_url: str
) -> None:
    await harness.ask(tools=[dig])
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("SET session_replication_role = replica")  # without the triggers
        await connection.execute(LOAD, OWNER)
        await connection.execute(JOBS)
        await connection.execute(
            "UPDATE turns SET queue_owner = 'bob' WHERE id = (SELECT id FROM turns WHERE status = 'waiting' LIMIT 1)"
        )
        await connection.execute(
            "UPDATE jobs SET due_at = now() FROM turns WHERE turns.id = turn_id AND queue_owner = 'bob'"
        )
        assert await connection.fetchval("SELECT count(*) FROM jobs") == WAITING * JOBS_OF_EACH
    finally:
        await connection.close()
    claimed, _ = await Jobs(harness.database, new_id()).claim(10, ["dig"])
    assert {job.owner for job in claimed} == {OWNER, "bob"}, "jobs that came an hour later are claimed beside them"
    assert len(claimed) == 5
