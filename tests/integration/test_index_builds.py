"""Migrations that build indexes on existing tables: while the tables are written, and again after an interruption."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Engine, event

from tests.integration.test_migrations import INDEXES, look, migrating, take_to
from tests.support.locks import waiting_to_migrate
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.migrations import downgrade, steps, upgrade
from turnstream.storage.row_security import hardening, policies_of
from turnstream.storage.sql_files import FOLDER

pytestmark = pytest.mark.timeout(180)

PRESENT = """
SELECT indrelid::regclass::text AS of, indexrelid::regclass::text AS index FROM pg_index
WHERE indrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
"""
VALID = "SELECT bool_and(indisvalid) FROM pg_index"
BUILDER = "SELECT pid FROM pg_stat_progress_create_index WHERE datname = current_database() AND phase ~ '^waiting'"


@contextmanager
def executed() -> Iterator[list[str]]:
    """Returns the statements of migrations that change something."""
    statements: list[str] = []
    after_each = {policies_of(ALL_TABLES.values()).strip(), hardening().strip()}

    def note(*arguments: Any) -> None:
        statement = arguments[2].strip()
        if statement not in after_each and not statement.startswith(("SELECT", "UPDATE turnstream_alembic_version")):
            statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def revisions() -> Sequence[str]:
    return sorted(path.name[:4] for path in FOLDER.glob("versions/*.py"))


def test_each_new_index_of_a_table_that_existed_is_built_concurrently_by_a_migration_that_does_nothing_else(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for of_functions in ("apply_files", "forget_files"):
        monkeypatch.setattr(f"turnstream.storage.migrations.{of_functions}", lambda _connection: None)
    first, *later = revisions()
    downgrade(database_url, first)
    [present] = asyncio.run(look(database_url, PRESENT))
    found = []
    for revision in later:
        tables, before = {table for table, _ in present}, present
        with executed() as statements:
            upgrade(database_url, revision)
        [present] = asyncio.run(look(database_url, PRESENT))
        concurrently = [each for each in statements if each.startswith("CREATE INDEX CONCURRENTLY")]
        for table, index in set(present) - set(before):
            if table in tables:
                assert any(f" {index} ON {table} " in each for each in concurrently), f"{revision}: {index} of {table}"
                found.append(index)
        if concurrently:
            assert statements == concurrently, f"{revision}: after an interruption the others would be done twice"
    built = [path for path in FOLDER.glob("versions/*.py") if "create_index_concurrently(" in path.read_text()]
    assert len(found) == len(built)


def test_each_step_that_builds_an_index_of_a_table_that_existed_does_nothing_else() -> None:
    found = []
    for revision, statements in steps().items():
        made = [name for each in statements for name in re.findall(r"^CREATE (?:UNLOGGED )?TABLE (\w+)", each)]
        for each in statements:
            index = re.match(r"CREATE (?:UNIQUE )?INDEX (CONCURRENTLY IF NOT EXISTS )?(\w+) ON (\w+)", each)
            if index and index[3] not in made:
                assert index[1], f"{revision}: {index[2]} keeps writers waiting"
                assert statements == [each], f"{revision}: after an interruption the others would be done twice"
                found.append(revision)
    assert INDEX_STEP in found


# The last step that builds an index, and the revision before it.
INDEX_STEP, BEFORE_INDEX = "0080", "0079"


@pytest.fixture
async def before_index(empty_database_url: str, tmp_path: Path) -> str:
    await take_to(BEFORE_INDEX, empty_database_url, tmp_path)
    return empty_database_url


@pytest.fixture
async def reader(before_index: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """Opens a transaction that has read. Until it ends, Postgres builds an index but does not mark it as ready."""
    connection = await asyncpg.connect(before_index)
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM turns")
    yield connection
    await connection.close()


@pytest.fixture
async def watcher(before_index: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(before_index)
    yield connection
    await connection.close()


async def builder(watcher: "asyncpg.Connection[Any]") -> int:
    """Returns the backend that builds an index, as soon as it waits for the reader."""
    while (pid := await watcher.fetchval(BUILDER)) is None:  # noqa: ASYNC110, Postgres tells nobody
        await asyncio.sleep(0.01)
    return int(pid)


@pytest.mark.needs("git")
async def test_a_table_is_written_while_its_index_is_built_and_a_second_migration_waits(
    before_index: str,
    other_database_url: str,
    reader: "asyncpg.Connection[Any]",
    watcher: "asyncpg.Connection[Any]",
) -> None:
    first = await migrating(before_index)
    await builder(watcher)
    second = await migrating(before_index)
    await waiting_to_migrate(watcher, 1)
    await watcher.execute("SET lock_timeout = '20s'; DELETE FROM turns WHERE attempt < 0")  # takes the lock of a write
    await reader.execute("COMMIT")
    assert [await process.wait() for process in (first, second)] == [0, 0]
    assert await look(before_index, INDEXES, VALID) == await look(other_database_url, INDEXES, VALID)


UNGUARDED = """
SELECT relname::text FROM pg_class
WHERE relrowsecurity AND NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = pg_class.oid)
UNION ALL
SELECT proname FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND has_function_privilege('public', oid, 'EXECUTE')
"""


@pytest.mark.needs("git")
async def test_while_an_index_is_built_tables_have_their_policies_and_functions_their_rights(
    empty_database_url: str, tmp_path: Path
) -> None:
    """One of the steps that bring an old database to the oldest revision drops the policies. The step is committed
    before the next index is built.
    """
    await take_to("0045", empty_database_url, tmp_path)
    reader, watcher = await asyncpg.connect(empty_database_url), await asyncpg.connect(empty_database_url)
    await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    migration = await migrating(empty_database_url)
    await builder(watcher)
    assert await watcher.fetch(UNGUARDED) == []
    await reader.execute("COMMIT")
    assert await migration.wait() == 0
    for connection in (reader, watcher):
        await connection.close()


@pytest.mark.needs("git")
async def test_an_index_whose_build_was_interrupted_is_built_again(
    before_index: str,
    other_database_url: str,
    reader: "asyncpg.Connection[Any]",
    watcher: "asyncpg.Connection[Any]",
) -> None:
    interrupted = await migrating(before_index)
    await watcher.execute("SELECT pg_terminate_backend($1)", await builder(watcher))
    assert await interrupted.wait() != 0
    assert not await watcher.fetchval(VALID)
    await reader.execute("COMMIT")
    assert await (await migrating(before_index)).wait() == 0
    assert await look(before_index, INDEXES, VALID) == await look(other_database_url, INDEXES, VALID)
