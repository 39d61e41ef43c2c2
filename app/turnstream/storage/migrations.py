"""Migrates a database to the newest revision of `migrations/`. Alembic and SQLAlchemy, whose import takes a fifth of a
second, are imported only if there is something to migrate.

A database without tables gets the tables of `schema.sql`, then the later revisions. If a database is older than the
oldest revision in `versions`, the steps of the extension `old_databases` run first. Each function and each trigger has
a file in a folder `sql`. After the newest revision, each file with a changed digest is applied.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final

import asyncpg
from asyncpg.types import ServerVersion

from turnstream.domain.errors import ConfigError
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.database import SigningKey, plain_url, single_connection, unusable
from turnstream.storage.sql_files import FOLDER, schema_files, sql_files, step_files

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

OLDEST_POSTGRES = 15  # the major version; tests use this version and the embedded version

OLDEST_REVISION: Final = "0036"  # earlier revisions are one baseline, and revisions up to 0087 are steps
LAST_WITH_ALL_REVISIONS: Final = "638e240"
LAST_WITH_WAY_BACK: Final = "6a76940"  # the last commit that can downgrade a database through the steps

_OURS = re.compile("[0-9]{4}")
_STEP = re.compile(r"^-- revision ([0-9]{4}).*\n", re.MULTILINE)
_END = re.compile(r";\n(?=\S)")  # the lines of a statement after its first line are indented
_VERSIONS = "turnstream_alembic_version"
_USUAL_VERSIONS = "alembic_version"  # Alembic's default, which databases of earlier versions have
VERSION_TABLES: Final = (_VERSIONS, _USUAL_VERSIONS)
DIGESTS: Final = "turnstream_sql_digests"
_FIRST_TABLES = frozenset({"chats", "turns", "blocks", "rounds", "documents", "tokens"})
RELATIONS: Final = """
SELECT relname FROM pg_class
WHERE relkind IN ('r', 'v', 'p', 'm', 'f') AND relnamespace = to_regnamespace(current_schema())
"""
_PUT_KEY = "INSERT INTO signing_key (inner_pad, outer_pad) VALUES ($1, $2)"
_CREATE_DIGESTS = f"CREATE TABLE IF NOT EXISTS {DIGESTS} (name text PRIMARY KEY, digest text NOT NULL)"
_GET_DIGESTS = f"SELECT name, digest FROM {DIGESTS}"
_PUT_DIGESTS = f"INSERT INTO {DIGESTS} SELECT * FROM unnest($1::text[], $2::text[])"
# Functions call each other. Without this setting, Postgres would require the functions of later files.
_ANY_ORDER = "SET LOCAL check_function_bodies = off"
# The creation of a trigger locks its table. The migration locks all tables at once, because running replicas lock
# tables in other orders. If it cannot get all locks, it releases all and tries again.
_LOCK = """
DO $$
BEGIN
    PERFORM set_config('lock_timeout', '500ms', true);
    LOOP
        BEGIN
            LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(0.1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', '0', true);
END
$$
"""


def create_tables(connection: "Connection") -> str:
    """Creates the tables of each `schema.sql`, and the key that all servers share. Returns the tables' revision."""
    first, *others = (path.read_text(encoding="utf-8") for path in schema_files())
    for statement in ";\n".join([first, *others]).split(";\n"):
        if statement.strip():
            connection.exec_driver_sql(statement)
    put_key(connection)
    return first.partition("revision ")[2][:4]


def put_key(connection: "Connection") -> None:
    key = SigningKey.generate()
    connection.exec_driver_sql(_PUT_KEY, (key.inner_pad, key.outer_pad))


def steps() -> Mapping[str, Sequence[str]]:
    """Returns the statements of `steps.sql`, by the revision that they lead to. Returns nothing without the file."""
    _, *parts = _STEP.split("".join(path.read_text(encoding="utf-8") for path in step_files()))
    return {
        revision: _END.split(text.strip()) if text.strip() else []
        for revision, text in zip(parts[::2], parts[1::2], strict=True)
    }


def oldest_in_versions() -> str:
    return min(_in_versions())


def apply_files(connection: "Connection") -> None:
    """Applies the changed files to a database that has the newest revision."""
    connection.exec_driver_sql(_CREATE_DIGESTS)
    applied = {row.name: row.digest for row in connection.exec_driver_sql(_GET_DIGESTS)}
    files = sql_files()
    changed = [file for file in files if applied.get(file.name) != file.digest]
    if tables := sorted({file.table for file in changed if file.table}):
        connection.exec_driver_sql(_LOCK.format(", ".join(tables)))
    connection.exec_driver_sql(_ANY_ORDER)
    for file in changed:
        connection.exec_driver_sql(file.sql)
    forget_files(connection)
    connection.exec_driver_sql(_PUT_DIGESTS, ([file.name for file in files], [file.digest for file in files]))


def forget_files(connection: "Connection") -> None:
    """Deletes the digests of applied files, so that the next version of the server applies all its files."""
    connection.exec_driver_sql(_CREATE_DIGESTS)
    connection.exec_driver_sql(f"DELETE FROM {DIGESTS}")


def alembic_config(url: str) -> "Config":
    """Returns Alembic's configuration for the database at `url` (postgresql://…)."""
    from alembic.config import Config  # noqa: PLC0415

    if not (FOLDER / "env.py").is_file():
        raise ConfigError(f"The migrations are not at {FOLDER}. Install turnstream again.")
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["url"] = url
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Migrates the database. Waits for any other process that migrates it. Must not be called inside an event loop."""
    from alembic import command  # noqa: PLC0415

    command.upgrade(alembic_config(url), revision)


def downgrade(url: str, revision: str) -> None:
    from alembic import command  # noqa: PLC0415

    command.downgrade(alembic_config(url), revision)


async def upgrade_in_thread(url: str) -> None:
    """Calls `upgrade` from an event loop, if the revision is not the newest or functions have changed. Raises
    ConfigError if the database is unreachable, too new, too old, or in use by another program.
    """
    revision, digests = await _present(url)
    if revision != newest_revision() or digests != {file.name: file.digest for file in sql_files()}:
        await asyncio.to_thread(_upgrade_checked, url)


async def downgrade_in_thread(url: str, revision: str) -> None:
    """Calls `downgrade` from an event loop. Raises ConfigError if `revision` is unknown, or newer than the database."""
    present, known = await present_revision(url), sorted(_in_versions())
    if present is None or revision not in known or revision > present:
        raise ConfigError(
            f"--to must be a revision from {known[0]} on, up to that of the database, {present}. The commit"
            f" {LAST_WITH_WAY_BACK} of turnstream takes a database of a revision up to 0087 back to earlier ones."
        )
    await asyncio.to_thread(downgrade, url, revision)


async def present_revision(url: str) -> str | None:
    """Returns the revision of the database; None without tables. Raises ConfigError if a migration is impossible."""
    return (await _present(url))[0]


async def _present(url: str) -> tuple[str | None, Mapping[str, str]]:
    """Returns the revision, and the digests of the functions and triggers."""
    try:
        # All queries see one snapshot, because another process may migrate now, and commit tables with their revision.
        async with (
            single_connection(plain_url(url)) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            _refuse_old_postgres(connection.get_server_version())
            schema = await connection.fetchval("SELECT current_schema()")
            present = {each["relname"] for each in await connection.fetch(RELATIONS)}
            revisions = {
                table: [each["version_num"] for each in await connection.fetch(f"SELECT version_num FROM {table}")]
                for table in VERSION_TABLES
                if table in present
            }
            digests = dict(await connection.fetch(_GET_DIGESTS)) if DIGESTS in present else {}
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise unusable("DATABASE_URL", url, error) from error
    known = [each for each in revisions.get(version_table(present), []) if _OURS.fullmatch(each)]
    if not known:
        _refuse_tables_of_others(schema, present, revisions.get(_USUAL_VERSIONS, []))
    if too_old := [each for each in known if each < OLDEST_REVISION]:
        raise ConfigError(
            f"DATABASE_URL: the revision {too_old[0]!r} of the database is older than {OLDEST_REVISION!r}, the oldest"
            " one that this version migrates. Nothing was changed. Run `turnstream migrate` of an earlier version:"
            f" the commit {LAST_WITH_ALL_REVISIONS} of turnstream migrates the database to {OLDEST_REVISION!r}."
        )
    if not steps() and (before := [each for each in known if each < oldest_in_versions()]):
        raise ConfigError(
            f"DATABASE_URL: the revision {before[0]!r} of the database needs the extension old_databases, which is not"
            " installed here. Nothing was changed. Install turnstream again."
        )
    if unknown := sorted({*known} - _known_revisions()):
        raise ConfigError(
            f"DATABASE_URL: the revision {unknown[0]!r} of the database is not known here: a newer turnstream has used"
            " it. Run that version, or let it take the database back to the newest revision that this version knows:"
            f" `turnstream migrate --to {newest_revision()}`"
        )
    return known[0] if known else None, digests


def _refuse_old_postgres(version: ServerVersion) -> None:
    if version.major < OLDEST_POSTGRES:
        raise ConfigError(
            f"DATABASE_URL names a server of PostgreSQL {version.major}.{version.minor}: upgrade it to PostgreSQL"
            f" {OLDEST_POSTGRES} or newer."
        )


def _refuse_tables_of_others(schema: str | None, present: Set[str], revisions: Sequence[str]) -> None:
    tables = sorted(present & ALL_TABLES.keys())
    if revisions or tables:
        what = f"the revision {revisions[0]!r} of Alembic" if revisions else f"the tables {', '.join(tables)}"
        raise ConfigError(
            f"DATABASE_URL names a database that another program uses: its schema {schema} has {what}. Nothing was"
            " changed. Set TURNSTREAM_DB_SCHEMA to a schema for turnstream alone, or DATABASE_URL to another database."
        )


def version_table(present: Set[str]) -> str:
    """Returns the name of Alembic's table in a schema with the tables `present`. Without tables of turnstream, the
    table `alembic_version` belongs to another program.
    """
    usual = _VERSIONS not in present and {_USUAL_VERSIONS, *_FIRST_TABLES} <= present
    return _USUAL_VERSIONS if usual else _VERSIONS


def newest_revision() -> str:
    return max(_known_revisions())


def _known_revisions() -> Set[str]:
    return _in_versions() | steps().keys() | {OLDEST_REVISION}


def _in_versions() -> frozenset[str]:
    """Returns the revisions in `migrations/versions`, from the names of the files."""
    return frozenset(file.name.partition("_")[0] for file in (FOLDER / "versions").glob("*.py"))


def _upgrade_checked(url: str) -> None:
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    try:
        upgrade(url)
    except SQLAlchemyError as error:
        raise unusable("DATABASE_URL", url, error) from error
