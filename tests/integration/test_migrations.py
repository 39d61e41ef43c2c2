"""Migrations and the declared tables agree, upwards and downwards, however many processes migrate the database at
once.
"""

import asyncio
import io
import re
import sys
import tarfile
import threading
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from alembic.script import ScriptDirectory

from tests.support.catalog import RENEW, catalog, schema_sql
from tests.support.locks import Locker, waiting_to_migrate
from tests.support.migration_files import listed, present
from tests.support.row_security import admit_api
from turnstream.domain.errors import ConfigError
from turnstream.storage import migration_waits
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.migrations import (
    DIGESTS,
    LAST_WITH_ALL_REVISIONS,
    LAST_WITH_WAY_BACK,
    OLDEST_REVISION,
    alembic_config,
    downgrade,
    newest_revision,
    oldest_in_versions,
    present_revision,
    upgrade,
    upgrade_in_thread,
)
from turnstream.storage.sql_files import FOLDER, SqlFile, functions, schema_files, sql_files

COLUMNS = """
SELECT relname, relpersistence, attname, format_type(atttypid, atttypmod) AS type, attnotnull, attgenerated,
       pg_get_expr(adbin, adrelid) AS expression
FROM pg_attribute
JOIN pg_class ON pg_class.oid = attrelid AND relkind = 'r' AND relnamespace = 'public'::regnamespace
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attnum > 0 AND NOT attisdropped AND relname !~ '^turnstream_'
ORDER BY relname, attname
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text AS relation, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND contype <> 't'
  AND conrelid <> 0 AND conrelid::regclass::text !~ '^turnstream_'
ORDER BY 1, 2
"""
INDEXES = """
SELECT indexname, indexdef FROM pg_indexes
WHERE schemaname = 'public' AND tablename !~ '^turnstream_' ORDER BY 1
"""
MIGRATE = "import sys; from turnstream.storage.migrations import upgrade; upgrade(sys.argv[1])"
TAKE_BACK = f"{MIGRATE}; from turnstream.storage.migrations import downgrade; downgrade(*sys.argv[1:])"


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


async def migrating(url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, url, cwd=FOLDER.parent)


def test_there_is_one_newest_revision_and_the_names_of_the_files_tell_it() -> None:
    assert ScriptDirectory.from_config(alembic_config("")).get_heads() == [newest_revision()]


def test_down_to_the_oldest_in_versions_and_up_again_leaves_no_trace(database_url: str) -> None:
    before = asyncio.run(catalog(database_url))
    downgrade(database_url, oldest_in_versions())
    assert asyncio.run(present_revision(database_url)) == oldest_in_versions()
    assert asyncio.run(look(database_url, f"SELECT FROM {DIGESTS}")) == [[]], "its own functions may be others"
    for _ in range(2):
        upgrade(database_url)
        asyncio.run(admit_api(database_url))
        assert asyncio.run(catalog(database_url)) == before


async def take_to(revision: str, url: str, folder: Path) -> None:
    """Migrates the database to the revision, with a version of the code that could do so. In the oldest version, the
    package is called `app`.
    """
    oldest = revision == OLDEST_REVISION
    commit = LAST_WITH_ALL_REVISIONS if oldest else LAST_WITH_WAY_BACK
    git = ("git", "-C", FOLDER.parent, "-c", "safe.directory=*", "archive", commit, "app", "migrations")
    archive = await asyncio.create_subprocess_exec(*git, stdout=PIPE, stderr=PIPE)
    output, reason = await archive.communicate()
    if archive.returncode:
        pytest.skip(f"the history of git does not reach back: {reason.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(output)) as packed:
        packed.extractall(folder, filter="data")
    script = MIGRATE.replace("turnstream.", "app.") if oldest else TAKE_BACK
    cwd = folder if oldest else folder / "app"
    old = await asyncio.create_subprocess_exec(sys.executable, "-c", script, url, revision, cwd=cwd)
    assert await old.wait() == 0
    assert await present_revision(url) == revision


@pytest.mark.needs("git")
@pytest.mark.parametrize("revision", [OLDEST_REVISION, "0044", "0057", "0071", "0078"])
async def test_a_database_of_a_revision_before_the_oldest_in_versions_becomes_the_same_as_a_new_one(
    database_url: str, empty_database_url: str, tmp_path: Path, revision: str
) -> None:
    await take_to(revision, empty_database_url, tmp_path)
    await upgrade_in_thread(empty_database_url)
    await admit_api(empty_database_url)
    new, migrated = await catalog(database_url), await catalog(empty_database_url)
    for kind, rows in new.items():
        assert migrated[kind] == rows, kind


async def test_a_database_of_before_the_baseline_is_refused_with_the_version_to_run_first(database_url: str) -> None:
    await _execute(database_url, "UPDATE turnstream_alembic_version SET version_num = '0025'")
    with pytest.raises(
        ConfigError, match=rf"'0025'.*older than '0036'.*commit {LAST_WITH_ALL_REVISIONS} of turnstream"
    ):
        await upgrade_in_thread(database_url)


async def test_the_files_of_the_schema_are_those_of_a_new_database(database_url: str) -> None:
    there = {file: file.read_text(encoding="utf-8") for file in schema_files()}
    assert there == await schema_sql(database_url), f"run `{RENEW}`"


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


async def test_a_database_of_a_newer_version_is_refused_with_a_remedy(database_url: str) -> None:
    await _execute(database_url, "UPDATE turnstream_alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigError, match=rf"'9999'.*newer turnstream.*migrate --to {newest_revision()}"):
        await upgrade_in_thread(database_url)


@asynccontextmanager
async def locker_at(url: str) -> AsyncIterator[Locker]:
    holder, watcher = await asyncpg.connect(url), await asyncpg.connect(url)
    yield Locker(holder, watcher)
    await holder.close()
    await watcher.close()


@pytest.fixture
async def locker(empty_database_url: str) -> AsyncIterator[Locker]:
    async with locker_at(empty_database_url) as locker:
        yield locker


(LOCK,) = map(int, re.findall(r"^LOCK = ([\d_]+)$", (FOLDER / "env.py").read_text(), re.MULTILINE))
# PostgreSQL 15 has no time limit for transactions.
LIMITS = ("statement_timeout", "lock_timeout", "transaction_timeout", "idle_in_transaction_session_timeout")


async def test_two_processes_that_migrate_at_once_do_it_once_whatever_the_limits_of_the_database(
    empty_database_url: str, database_url: str, locker: Locker
) -> None:
    name = await locker.connection.fetchval("SELECT current_database()")
    limits = await locker.connection.fetch("SELECT name FROM pg_settings WHERE name = ANY($1)", LIMITS)
    for (limit,) in limits:
        await locker.connection.execute(f"ALTER DATABASE {name} SET {limit} = '250ms'")
    async with locker.holding(f"SELECT pg_advisory_xact_lock({LOCK})"):
        both = [await migrating(empty_database_url) for _ in range(2)]
        await waiting_to_migrate(locker.watcher, 2)
        await locker.connection.execute("SELECT pg_sleep(0.5)")  # longer than the time limit of a statement
    assert [await process.wait() for process in both] == [0, 0]
    for query in (COLUMNS, CONSTRAINTS, INDEXES, "SELECT * FROM turnstream_alembic_version"):
        assert await look(empty_database_url, query) == await look(database_url, query)


def test_no_migration_changes_once_databases_may_have_it_and_a_function_changes_with_a_new_one() -> None:
    """If a migration changed later, a database that already has it would never get the change. Without a new revision,
    a server of the previous version would not see that the functions are newer, and would put its own back.
    """
    there = present()
    kept = {name: digest for name, digest in listed().items() if name in there or not name.startswith("sql/")}
    assert there == kept, "write another migration instead of changing one; list a new one with `make migrations`"


# --- functions and triggers -------------------------------------------------------------------------------------------


async def test_the_functions_and_triggers_are_those_of_the_files_each_with_one_signature(database_url: str) -> None:
    there = await catalog(database_url)
    triggers = {f"triggers/{table}.{name}" for table, name, *_ in there["triggers"]}
    assert sorted(signature.partition("(")[0] for signature, *_ in there["functions"]) == sorted(functions())
    assert triggers == {file.name for file in sql_files() if file.table is not None}


async def test_postgres_finds_all_names_in_the_bodies_of_functions(database_url: str) -> None:
    """Migrations do not check these names, because a function may call a function of a later file."""
    before = await catalog(database_url)
    for file in sql_files():
        await _execute(database_url, file.sql)
    after = await catalog(database_url)
    assert {kind for kind in before if before[kind] != after[kind]} <= {"functions"}, "their settings"


SOURCE = "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosrc ~ 'Of a test'"
OWNERS = "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
TRIGGERS = "SELECT tgname, xmin::text FROM pg_trigger WHERE NOT tgisinternal"


def changed(*names: str) -> Sequence[SqlFile]:
    """Returns the files of the tree. The files in `names` have another text."""
    return [
        replace(file, sql=re.sub(r"\bBEGIN\n", "BEGIN  -- Of a test\n", file.sql) + "\n-- changed")
        if file.name in names
        else file
        for file in sql_files()
    ]


async def test_a_start_applies_the_functions_that_changed_and_no_others(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, owners, triggers = await look(database_url, SOURCE, OWNERS, TRIGGERS)
    files = changed("called/take_place")
    monkeypatch.setattr("turnstream.storage.migrations.sql_files", lambda: files)
    await upgrade_in_thread(database_url)
    after = await look(database_url, SOURCE, OWNERS, TRIGGERS)
    assert other == []
    assert [name for name, _ in after[0]] == ["take_place"]
    assert after[1:] == [owners, triggers]


async def test_a_trigger_that_changes_waits_for_those_who_write_its_table_and_holds_nobody_up_meanwhile(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = changed("triggers/turns.turn_waits", "triggers/chats.chat_deleted")
    monkeypatch.setattr("turnstream.storage.migrations.sql_files", lambda: files)
    [before] = await look(database_url, TRIGGERS)
    async with locker_at(database_url) as locker:
        async with locker.holding("DELETE FROM turns WHERE attempt < 0"):
            migration = asyncio.create_task(upgrade_in_thread(database_url))
            await locker.waiting()
            await locker.watcher.execute("SET lock_timeout = '20s'; DELETE FROM chats WHERE title = 'none'")
        await migration
    [after] = await look(database_url, TRIGGERS)
    assert {name for name, _ in {*after} - {*before}} == {"turn_waits", "chat_deleted"}


LOCKS = ["DELETE FROM turns WHERE attempt < 0", f"SELECT pg_advisory_xact_lock({LOCK})"]


@pytest.mark.parametrize("lock", LOCKS, ids=["a transaction", "another migration"])
async def test_the_log_names_the_session_that_a_migration_waits_for(
    database_url: str, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    files, reported = changed("triggers/turns.turn_waits"), threading.Event()
    monkeypatch.setattr("turnstream.storage.migrations.sql_files", lambda: files)
    monkeypatch.setattr(migration_waits, "PAUSE", 0.05)
    seen: dict[str, Any] = {}

    def warning(event: str, **fields: Any) -> None:
        seen.update(fields, event=event)
        reported.set()

    monkeypatch.setattr(migration_waits, "log", SimpleNamespace(warning=warning))
    async with locker_at(database_url) as locker:
        async with locker.holding(lock):
            migration = asyncio.create_task(upgrade_in_thread(database_url))
            await asyncio.to_thread(reported.wait)
        await migration
        assert (seen["event"], seen["pid"]) == ("migration.waits", locker.connection.get_server_pid())
        assert (seen["user"], seen["state"]) == ("postgres", "idle in transaction")
        assert seen["seconds"] >= 0


# Tables with few or rarely changed rows. For these tables the default vacuum settings of Postgres are right.
NO_VACUUM_OF_THEIR_OWN = {
    *(
        "asks",
        "browser_tokens",
        "chat_members",
        "chat_uploads",
        "chats",
        "clock_steps",
        "deleted_chats",
        "deleted_turns",
        "documents",
        "erasures",
        "grants",
        "idempotency_keys",
        "login_sessions",
    ),
    *(
        "moves",
        "owner_keys",
        "provider_rates",
        "search_backlog",
        "search_chats",
        "search_documents",
        "search_owners",
        "search_segments",
    ),
    *(
        "shares",
        "sign_ins",
        "signing_key",
        "steers",
        "stopped_jobs",
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
    assert {name for name in ALL_TABLES if not options[name]} == NO_VACUUM_OF_THEIR_OWN
    assert options["blocks"] == [
        f"autovacuum_{kind}_scale_factor=0.02" for kind in ("vacuum_insert", "vacuum", "analyze")
    ]
    assert options["journal_ticks"] == ["autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=1000"]
