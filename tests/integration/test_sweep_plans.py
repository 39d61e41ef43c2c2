"""Every sweep reads and deletes in portions, so that no statement grows with its table. The test uses the server's list
of sweeps, and so includes new sweeps.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.plans import EXECUTIONS, nodes, plan_of
from turnstream.config import Settings
from turnstream.engine.upkeep.sweeps import Sweep
from turnstream.extensions import retention, tool_results, webhooks
from turnstream.setup import engine
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.pool import Pool

pytestmark = pytest.mark.timeout(300)

FEW, MANY = 50_000, 1_000_000  # rows of each table
STEPS = 60  # the steps for which the test runs a sweep
ALL_REFERENCES = 2_100  # steps: two tables of a million rows, before the first upload is deleted
MOST = 21_000  # rows that one node of a plan may touch
SETTINGS = Settings(_env_file=None, retain_chats_days=30.0, retain_uploads_days=30.0)

# Rows of each table. Half of them are older than any row that is kept. The ids of turns begin with their time.
LOAD = """
SET session_replication_role = replica;
CREATE FUNCTION at_of(number bigint) RETURNS timestamptz IMMUTABLE LANGUAGE sql AS $$
    SELECT timestamptz '{now}' - CASE WHEN number % 2 = 0 THEN interval '500 days' ELSE interval '2 days' END
        + number * interval '1 millisecond'
$$;
CREATE FUNCTION id_of(number bigint) RETURNS uuid IMMUTABLE LANGUAGE sql AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at_of(number)) * 1000)::bigint), 12, '0') || '7000'
        || lpad(to_hex(number), 16, '8'))::uuid
$$;
INSERT INTO uploads (id, owner, digest, media_type, content, created_at)
    SELECT id_of(n), 'ada', sha256(n::text::bytea), 'text/plain', '', at_of(n) FROM generate_series(1, {rows}) AS n;
INSERT INTO blocks (turn_id, index, round, attempt, type, text, data)
    SELECT id_of(n), 0, 0, 0, 'image', '', json_build_object('upload', id_of(n - n % 3))
    FROM generate_series(1, {rows}) AS n;
INSERT INTO deleted_chats (owner, chat_id, deleted_at)
    SELECT 'owner ' || n % 1000, id_of(n), at_of(n) FROM generate_series(1, {rows}) AS n;
INSERT INTO audit (kind, owner, detail, created_at)
    SELECT CASE n % 3 WHEN 0 THEN 'login.refused' ELSE 'token.created' END, 'ada', '{{}}', at_of(n)
    FROM generate_series(1, {rows}) AS n;
INSERT INTO tool_cache (owner, key, tool, content, size, stored_at, expires_at)
    SELECT 'ada', sha256(n::text::bytea), 't', '', 0, at_of(n), at_of(n) + interval '3 days'
    FROM generate_series(1, {rows}) AS n;
INSERT INTO tool_sets (owner, digest, tools, used_at)
    SELECT 'owner ' || n % 1000, sha256(n::text::bytea), '[]', at_of(n) FROM generate_series(1, {rows}) AS n;
INSERT INTO reservations (id, owner, turn_id, attempt, call, tokens, cost, reserved_at)
    SELECT gen_random_uuid(), 'ada', id_of(n), 1, '1.1', 1, 0, now() FROM generate_series(1, {rows}) AS n;
INSERT INTO open_text (turn_id, attempt, index, start, round, type, text)
    SELECT id_of(n), 1, 0, 0, 1, 'text', '' FROM generate_series(1, {rows}) AS n;
INSERT INTO idempotency_keys (owner, key, digest, turn_id, created_at)
    SELECT 'ada', n::text, '', CASE WHEN n % 4 > 1 THEN id_of(n) END, at_of(n) FROM generate_series(1, {rows}) AS n;
INSERT INTO webhooks (turn_id, due_at, delivered_at)
    SELECT id_of(n), NULL, at_of(n) FROM generate_series(1, {rows}) AS n;
INSERT INTO waiting_webhooks (turn_id, asked, calls, due_at, delivered_at)
    SELECT id_of(n), 1, '[]', NULL, at_of(n) FROM generate_series(1, {rows}) AS n;
INSERT INTO chats (id, owner, created_at, updated_at)
    SELECT id_of(n), 'owner ' || n % 1000, at_of(n), at_of(n) FROM generate_series(1, {rows}) AS n;
INSERT INTO turns (id, chat_id, parent_id, role, status, request, tool_set, attempt, stop_reason, created_at, ended_at)
    SELECT id_of(n), id_of(n), id_of(n + 1), 'assistant', 'complete', '{{}}', sha256((n - n % 4)::text::bytea), 1,
        'end_turn', at_of(n), at_of(n)
    FROM generate_series(1, {rows}) AS n;
INSERT INTO asks (turn_id, round, tool_use_id, name, kind, digest, attempt, asked_at, answer, answered_at)
    SELECT id_of(n), 1, 'c', 't', 'client', 'd', 1, at_of(n),
        json_build_object('layout', id_of(n - n % 4)::text), at_of(n)
    FROM generate_series(1, {rows}) AS n;
SET session_replication_role = DEFAULT;
"""


async def _connect() -> Any:
    raise AssertionError("a sweep uses `rows` alone")


class Explained(Database):
    """A database that explains each statement. `touched` has the rows of the largest node of each plan."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        super().__init__(Pool(_connect, 1), 30.0)
        self.raw = connection
        self.touched: list[tuple[float, str]] = []

    async def rows(self, statement: Statement, **values: Any) -> Sequence[Row]:
        for execution in EXECUTIONS:
            savepoint = self.raw.transaction()
            await savepoint.start()
            plan = await plan_of(self.raw, statement, values, execution)
            await savepoint.rollback()
            self.touched.append((max(map(_touched, nodes(plan))), f"{statement.sql}\n{json.dumps(plan, indent=1)}"))
        rows: Sequence[Row] = await self.raw.fetch(statement.sql, *statement.arguments(values))
        return rows


def _touched(node: Mapping[str, Any]) -> float:
    """Multiplies rows by loops. Postgres looks up an array of ids one id at a time, and the rows that belong to a row
    one row at a time.
    """
    if node["Node Type"] == "Function Scan" or "CTE Name" in node:  # these nodes read no table
        return 0
    rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
    return float(rows * node["Actual Loops"])


async def _load(database_url: str, rows: int) -> None:
    connection = await asyncpg.connect(database_url)
    now = await connection.fetchval("SELECT now()::text")
    await connection.execute("DROP FUNCTION IF EXISTS id_of, at_of")
    await connection.execute(LOAD.format(rows=rows, now=now), timeout=1500)
    await connection.execute("VACUUM ANALYZE", timeout=300)
    await connection.close()


@pytest.fixture(scope="module")
def large_database_url(shared_database_url: str) -> str:
    asyncio.run(_load(shared_database_url, FEW))
    return shared_database_url


@asynccontextmanager
async def explained(database_url: str) -> AsyncIterator[Explained]:
    """Yields a database whose statements are explained. Restores the rows that the sweeps delete, at the end."""
    connection = await asyncpg.connect(database_url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield Explained(connection)
    finally:
        await transaction.rollback()
        await connection.close()


def _sweeps(database: Database) -> Sequence[Sweep]:
    return [
        sweep for part in (engine, retention, tool_results, webhooks) for sweep in part.sweeps_of(SETTINGS, database)
    ]


SWEEPS = [sweep.name for sweep in _sweeps(Database(Pool(_connect, 1), 30.0))]


# Old and young rows alternate, so that rows which stay do not hide later rows from a sweep. `LOAD` has rows that a
# sweep removes, except for these sweeps: they find no such row, or find one only after more than `STEPS`.
WITHOUT_OLD_ROWS = {"old chats", "old waiting_webhooks", "open text", "reservations", "tool cache"}
# These sweeps follow the writes, and have their own tests.
ELSEWHERE = {"old runs of schedules", "rate limits", "search"}


def test_each_sweep_of_the_server_is_among_them() -> None:
    app = Path(engine.__file__).parents[1]
    code = "".join(path.read_text(encoding="utf-8") for path in app.rglob("*.py"))
    assert set(re.findall(r"\bSweep\(\"(.*?)\"", code)) <= {*SWEEPS, *ELSEWHERE}


async def _check(database: Explained, name: str) -> None:
    (sweep,) = (each for each in _sweeps(database) if each.name == name)
    removed = 0
    async with aclosing(sweep.steps()) as steps:
        for _ in range(ALL_REFERENCES if name == "unused uploads" else STEPS):
            if (count := await anext(steps, None)) is None:
                break
            removed += count
    assert database.touched, "a sweep runs statements"
    touched, plan = max(database.touched)
    assert touched <= MOST, plan
    assert removed or name in WITHOUT_OLD_ROWS


@pytest.mark.parametrize("name", SWEEPS)
async def test_no_statement_of_a_sweep_grows_with_its_table(large_database_url: str, name: str) -> None:
    async with explained(large_database_url) as database:
        await _check(database, name)


@pytest.mark.large
@pytest.mark.timeout(1800)
async def test_no_statement_of_a_sweep_grows_with_a_table_of_a_million_rows(database_url: str) -> None:
    await _load(database_url, MANY)
    for name in SWEEPS:
        async with explained(database_url) as database:
            await _check(database, name)
