"""Migrations and tables say the same, up and down, however many bring the database up at once."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.support.locks import Locker, waiting_to_migrate
from turnstream.domain.errors import ConfigError
from turnstream.storage.migrations import FOLDER, alembic_config, downgrade, newest_revision, upgrade, upgrade_in_thread
from turnstream.storage.tables import metadata

COLUMNS = """
SELECT relname, relpersistence, attname, format_type(atttypid, atttypmod) AS type, attnotnull, attgenerated,
       pg_get_expr(adbin, adrelid) AS expression
FROM pg_attribute
JOIN pg_class ON pg_class.oid = attrelid AND relkind = 'r' AND relnamespace = 'public'::regnamespace
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attnum > 0 AND NOT attisdropped AND relname <> 'turnstream_alembic_version'
ORDER BY relname, attname
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text AS relation, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND contype <> 't'
  AND conrelid NOT IN (0, coalesce(to_regclass('turnstream_alembic_version'), 0))
ORDER BY 1, 2
"""
INDEXES = """
SELECT indexname, indexdef FROM pg_indexes
WHERE schemaname = 'public' AND tablename <> 'turnstream_alembic_version' ORDER BY 1
"""
REST = """
SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname !~ '^turnstream_alembic'
UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT typname FROM pg_type WHERE typnamespace = 'public'::regnamespace AND typname !~ 'turnstream_alembic'
"""
MIGRATE = "import sys; from turnstream.storage.migrations import upgrade; upgrade(sys.argv[1])"


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


async def look(url: str, *queries: str) -> list[list[tuple[Any, ...]]]:
    connection = await asyncpg.connect(url)
    try:
        return [[tuple(row) for row in await connection.fetch(query)] for query in queries]
    finally:
        await connection.close()


def schema(url: str) -> list[list[tuple[Any, ...]]]:
    return asyncio.run(look(url, COLUMNS, CONSTRAINTS, INDEXES))


async def migrating(url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, url, cwd=FOLDER.parent)


def engine(url: str) -> AsyncEngine:
    return create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))


def test_there_is_one_newest_revision_and_the_names_of_the_files_tell_it() -> None:
    assert ScriptDirectory.from_config(alembic_config("")).get_heads() == [newest_revision()]


async def test_alembic_finds_nothing_to_change(database_url: str) -> None:
    def differences(connection: Connection) -> list[object]:
        options = {"compare_type": True, "version_table": "turnstream_alembic_version"}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))

    migrated = engine(database_url)
    async with migrated.connect() as connection:
        assert await connection.run_sync(differences) == []
    await migrated.dispose()


async def test_migrations_make_what_the_tables_say_checks_and_expressions_included(
    database_url: str, empty_database_url: str
) -> None:
    made = engine(empty_database_url)
    async with made.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await made.dispose()
    for query in (COLUMNS, CONSTRAINTS, INDEXES):
        assert await look(database_url, query) == await look(empty_database_url, query)


def test_down_to_nothing_and_up_again_leaves_no_trace(database_url: str) -> None:
    before = schema(database_url)
    downgrade(database_url, "base")
    assert asyncio.run(look(database_url, REST, "SELECT * FROM turnstream_alembic_version")) == [[], []]
    upgrade(database_url)
    assert schema(database_url) == before
    upgrade(database_url)
    assert schema(database_url) == before


async def test_an_address_may_say_more_as_it_does_for_psql(empty_database_url: str, database_url: str) -> None:
    address = urlsplit(empty_database_url)
    more = "&".join(filter(None, [address.query, "sslmode=prefer&application_name=migration"]))
    await upgrade_in_thread(address._replace(scheme="postgresql+asyncpg", query=more).geturl())
    for query in (COLUMNS, CONSTRAINTS, INDEXES):
        assert await look(database_url, query) == await look(empty_database_url, query)


async def test_a_database_of_this_version_is_not_given_to_alembic(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise AssertionError("one SELECT is enough")

    monkeypatch.setattr("turnstream.storage.migrations.upgrade", refuse)
    await upgrade_in_thread(database_url)


async def test_a_database_of_a_newer_version_is_refused_with_what_to_do(database_url: str) -> None:
    await _execute(database_url, "UPDATE turnstream_alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigError, match=rf"'9999'.*newer turnstream.*migrate --to {newest_revision()}"):
        await upgrade_in_thread(database_url)


@pytest.fixture
async def locker(empty_database_url: str) -> AsyncIterator[Locker]:
    holder, watcher = await asyncpg.connect(empty_database_url), await asyncpg.connect(empty_database_url)
    yield Locker(holder, watcher)
    await holder.close()
    await watcher.close()


# PostgreSQL 15 has no limit of transactions.
LIMITS = ("statement_timeout", "lock_timeout", "transaction_timeout", "idle_in_transaction_session_timeout")


async def test_two_processes_that_migrate_at_once_do_it_once_whatever_the_limits_of_the_database(
    empty_database_url: str, database_url: str, locker: Locker
) -> None:
    name = await locker.connection.fetchval("SELECT current_database()")
    limits = await locker.connection.fetch("SELECT name FROM pg_settings WHERE name = ANY($1)", LIMITS)
    for (limit,) in limits:
        await locker.connection.execute(f"ALTER DATABASE {name} SET {limit} = '250ms'")
    found = re.search(r"^LOCK = ([\d_]+)$", (FOLDER / "env.py").read_text(), re.MULTILINE)
    assert found
    async with locker.holding(f"SELECT pg_advisory_xact_lock({int(found[1])})"):
        both = [await migrating(empty_database_url) for _ in range(2)]
        await waiting_to_migrate(locker.watcher, 2)
        await locker.connection.execute("SELECT pg_sleep(0.5)")  # for longer than a statement has
    assert [await process.wait() for process in both] == [0, 0]
    for query in (COLUMNS, CONSTRAINTS, INDEXES, "SELECT * FROM turnstream_alembic_version"):
        assert await look(empty_database_url, query) == await look(database_url, query)


def test_no_migration_changes_once_databases_may_have_it() -> None:
    """A database that has it would never get the change. New ones are added by `make migrations`."""
    kept = dict(line.split()[::-1] for line in (FOLDER / "versions.sha256").read_text().splitlines())
    there = {path.name: sha256(path.read_bytes()).hexdigest() for path in (FOLDER / "versions").glob("*.py")}
    assert there == kept, "write another migration instead of changing one; list a new one with `make migrations`"


# Tables whose rows are few, or change seldom: what Postgres does by default is right for them.
NO_VACUUM_OF_THEIR_OWN = {
    *(
        "asks",
        "browser_tokens",
        "chat_uploads",
        "chats",
        "clock_steps",
        "deleted_chats",
        "deleted_turns",
        "documents",
        "grants",
        "idempotency_keys",
    ),
    *("moves", "search_backlog", "search_chats", "search_documents", "search_owners", "search_segments", "signing_key"),
    *(
        "steers",
        "sweeps",
        "token_requirement",
        "tokens",
        "tool_cache",
        "tool_sets",
        "uploads",
        "waiting_webhooks",
        "webhooks",
    ),
}


async def test_tables_that_grow_or_change_all_the_time_are_vacuumed_before_much_is_dead(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    rows = await connection.fetch("SELECT relname, reloptions FROM pg_class WHERE relkind = 'r'")
    await connection.close()
    options = {row["relname"]: row["reloptions"] for row in rows}
    assert {name for name in metadata.tables if not options[name]} == NO_VACUUM_OF_THEIR_OWN
    assert options["blocks"] == [
        f"autovacuum_{kind}_scale_factor=0.02" for kind in ("vacuum_insert", "vacuum", "analyze")
    ]
    assert options["journal_ticks"] == ["autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=1000"]
