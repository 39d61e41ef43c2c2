"""Many waiting turns with overdue jobs: a claim reads only claimable jobs, a list reads only jobs of its owner, and no
owner waits behind jobs of another owner.
"""

import json
from collections.abc import Mapping
from typing import Any

import asyncpg
import pytest

from tests.support.harness import OWNER, Harness
from tests.support.plans import EXECUTIONS, Execution, plan_of
from turnstream.extensions.jobs import rows as jobs
from turnstream.extensions.jobs.rows import Jobs
from turnstream.kit.ids import new_id
from turnstream.storage.chats.chats import LIST_CHATS, Chats
from turnstream.storage.database import Statement
from turnstream.tools.tool import tool

pytestmark = pytest.mark.full

WAITING, JOBS_OF_EACH = 1000, 5
# Inserts waiting turns and the jobs of each turn.
TURNS = f"""
INSERT INTO turns (id, chat_id, parent_id, role, status, request, queue_owner, attempt, started_at)
    SELECT gen_random_uuid(), chat_id, parent_id, role, 'waiting', request, $1, 1, now()
    FROM (SELECT * FROM turns WHERE role = 'assistant' LIMIT 1) AS turns, generate_series(1, {WAITING})
"""
JOBS = f"""
INSERT INTO jobs (id, turn_id, round, tool_use_id, name, kind, input, deadline, due_at, queue_owner)
    SELECT gen_random_uuid(), id, 1, n::text, $1, 'tool', '{{}}',
        now() + interval '1 hour', CAST(CAST($2 AS text) AS timestamptz), queue_owner
    FROM turns, generate_series(1, {JOBS_OF_EACH}) AS n WHERE status = 'waiting'
"""
OF_BOB = """
WITH turn AS (
    UPDATE turns SET queue_owner = 'bob' WHERE id = (SELECT id FROM turns WHERE status = 'waiting' LIMIT 1) RETURNING id
)
UPDATE jobs SET queue_owner = 'bob', name = 'dig', due_at = now() FROM turn WHERE turn_id = turn.id
"""
TO_CLAIM = 5  # with ten free slots, a claim takes five jobs


@tool(background=True)
async def dig() -> str:
    """Dig."""
    return "a hole"


async def load(connection: asyncpg.Connection, name: str, due_at: str) -> None:
    await connection.execute("SET session_replication_role = replica")  # the triggers do not fire
    await connection.execute(TURNS, OWNER)
    await connection.execute(JOBS, name, due_at)
    assert await connection.fetchval("SELECT count(*) FROM jobs") == WAITING * JOBS_OF_EACH
    await connection.execute("ANALYZE jobs, turns")


async def _explained(
    connection: asyncpg.Connection, execution: Execution, statement: Statement, **values: object
) -> Mapping[str, Any]:
    """Returns the plan of a statement, whose changes are rolled back."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        return await plan_of(connection, statement, values, execution)
    finally:
        await transaction.rollback()


def _read(plan: Mapping[str, Any], table: str) -> int:
    """Returns how many rows of the table the scans of the plan have read."""
    own = 0
    if plan.get("Relation Name") == table and plan["Node Type"] != "ModifyTable":
        own = plan["Actual Loops"] * (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0))
    return round(own + sum(_read(child, table) for child in plan.get("Plans", ())))


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(
    ("name", "due_at"),
    [("dig", "yesterday"), ("dig", "infinity"), ("away", "yesterday")],
    ids=["overdue", "detached", "without their tool"],
)
async def test_a_claim_does_not_read_the_jobs_of_other_owners(
    harness: Harness, database_url: str, name: str, due_at: str, execution: Execution
) -> None:
    await harness.ask(tools=[dig])
    connection = await asyncpg.connect(database_url)
    try:
        await load(connection, name, due_at)
        claim = {"replica": new_id(), "names": ["dig"]}
        look = await _explained(connection, execution, jobs.GET_WAITING)
        none_free = await _explained(connection, execution, jobs.CLAIM_JOBS, free=0, **claim)
        await connection.execute(OF_BOB)
        some_free = await _explained(connection, execution, jobs.CLAIM_JOBS, free=10, **claim)
    finally:
        await connection.close()
    assert _read(look, "jobs") <= 2, json.dumps(look, indent=1)
    assert (_read(none_free, "jobs"), _read(none_free, "turns")) == (0, 0), "a look without a free slot reads nothing"
    assert _read(some_free, "jobs") <= 10 * TO_CLAIM, json.dumps(some_free, indent=1)
    assert _read(some_free, "turns") <= 4 * TO_CLAIM, json.dumps(some_free, indent=1)


@pytest.mark.parametrize("execution", EXECUTIONS)
async def test_a_list_of_chats_reads_the_open_jobs_of_its_owner_alone(
    harness: Harness, database_url: str, execution: Execution
) -> None:
    await harness.ask(tools=[dig])
    connection = await asyncpg.connect(database_url)
    try:
        await load(connection, "dig", "infinity")
        await connection.execute(OF_BOB)
        for _ in range(60):
            await Chats(harness.database).create("bob", None, None, {})
        page = {"limit": 50, "before": None, "before_id": None}
        of_bob = await _explained(connection, execution, LIST_CHATS, owner="bob", **page)
        (chat,) = await Chats(harness.database).page(OWNER, 50, None)
    finally:
        await connection.close()
    assert chat.jobs == (WAITING - 1) * JOBS_OF_EACH
    assert (_read(of_bob, "jobs"), _read(of_bob, "turns")) == (JOBS_OF_EACH, JOBS_OF_EACH), json.dumps(of_bob, indent=1)


async def test_an_owner_is_served_in_the_first_look_before_thousands_of_overdue_jobs_of_another(
    harness: Harness, database_url: str
) -> None:
    await harness.ask(tools=[dig])
    connection = await asyncpg.connect(database_url)
    try:
        await load(connection, "dig", "yesterday")
        await connection.execute(OF_BOB)
    finally:
        await connection.close()
    claimed = (await Jobs(harness.database, new_id()).claim(10, ["dig"])).jobs
    assert {job.owner for job in claimed} == {OWNER, "bob"}, "jobs that came an hour later are claimed beside them"
    assert len(claimed) == 5
