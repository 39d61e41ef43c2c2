"""Migration of a database to the newest revision of `migrations/`. Alembic and SQLAlchemy, a fifth of a second, are
imported where there is something to migrate.
"""

import asyncio
import re
from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg
from asyncpg.types import ServerVersion

from turnstream.domain.errors import ConfigError
from turnstream.storage.database import plain_url, single_connection, unusable

if TYPE_CHECKING:
    from alembic.config import Config

_PACKAGE = Path(__file__).parents[1]
# A wheel carries them inside the package; in the source tree they stand beside it.
FOLDER = next(filter(Path.is_dir, [_PACKAGE / "migrations"]), _PACKAGE.parents[1] / "migrations")

OLDEST_POSTGRES = 15  # the major version; it and the embedded one are tested

_OURS = re.compile("[0-9]{4}")
_VERSIONS = "turnstream_alembic_version"
_USUAL_VERSIONS = "alembic_version"  # the default of Alembic, which databases of earlier versions have
VERSION_TABLES: Final = (_VERSIONS, _USUAL_VERSIONS)
_FIRST_TABLES = frozenset({"chats", "turns", "blocks", "rounds", "documents", "tokens"})
RELATIONS: Final = """
SELECT relname FROM pg_class
WHERE relkind IN ('r', 'v', 'p', 'm', 'f') AND relnamespace = to_regnamespace(current_schema())
"""


def alembic_config(url: str) -> "Config":
    """Alembic's configuration for `url` (postgresql://…)."""
    from alembic.config import Config  # noqa: PLC0415

    if not (FOLDER / "env.py").is_file():
        raise ConfigError(f"The migrations are not at {FOLDER}. Install turnstream again.")
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["url"] = url
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Migrates the database, waiting for any other process that is doing so. Not to be called inside an event loop."""
    from alembic import command  # noqa: PLC0415

    command.upgrade(alembic_config(url), revision)


def downgrade(url: str, revision: str) -> None:
    from alembic import command  # noqa: PLC0415

    command.downgrade(alembic_config(url), revision)


async def upgrade_in_thread(url: str) -> None:
    """`upgrade` inside an event loop, where the revision is not the newest already. Raises ConfigError where the
    database cannot be reached, is of a newer version, or holds the tables of another program.
    """
    if await present_revision(url) != newest_revision():
        await asyncio.to_thread(_upgrade_checked, url)


async def downgrade_in_thread(url: str, revision: str) -> None:
    """`downgrade` inside an event loop. Raises ConfigError where the database has no such revision behind it."""
    present, known = await present_revision(url), sorted(_known_revisions())
    if present is None or revision not in known[: known.index(present) + 1]:
        raise ConfigError(f"--to must be a revision up to that of the database, {present}, such as {known[0]}.")
    await asyncio.to_thread(downgrade, url, revision)


async def present_revision(url: str) -> str | None:
    """The revision of the database, None for one without tables. Raises ConfigError where it cannot be migrated."""
    try:
        # One snapshot: another process may migrate now, and commits the tables together with their revision.
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
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise unusable("DATABASE_URL", url, error) from error
    known = [each for each in revisions.get(version_table(present), []) if _OURS.fullmatch(each)]
    if not known:
        _refuse_tables_of_others(schema, present, revisions.get(_USUAL_VERSIONS, []))
    if unknown := sorted({*known} - _known_revisions()):
        raise ConfigError(
            f"DATABASE_URL: the revision {unknown[0]!r} of the database is not known here: a newer turnstream has used"
            " it. Run that version, or let it take the database back to the newest revision that this version knows:"
            f" `turnstream migrate --to {newest_revision()}`"
        )
    return known[0] if known else None


def _refuse_old_postgres(version: ServerVersion) -> None:
    if version.major < OLDEST_POSTGRES:
        raise ConfigError(
            f"DATABASE_URL names a server of PostgreSQL {version.major}.{version.minor}: upgrade it to PostgreSQL"
            f" {OLDEST_POSTGRES} or newer."
        )


def _refuse_tables_of_others(schema: str | None, present: Set[str], revisions: Sequence[str]) -> None:
    from turnstream.storage.tables import metadata  # noqa: PLC0415

    tables = sorted(present & metadata.tables.keys())
    if revisions or tables:
        what = f"the revision {revisions[0]!r} of Alembic" if revisions else f"the tables {', '.join(tables)}"
        raise ConfigError(
            f"DATABASE_URL names a database that another program uses: its schema {schema} has {what}. Nothing was"
            " changed. Set TURNSTREAM_DB_SCHEMA to a schema for turnstream alone, or DATABASE_URL to another database."
        )


def version_table(present: Set[str]) -> str:
    """Alembic's table in a schema with the tables `present`. An `alembic_version` without ours is another program's."""
    usual = _VERSIONS not in present and {_USUAL_VERSIONS, *_FIRST_TABLES} <= present
    return _USUAL_VERSIONS if usual else _VERSIONS


def newest_revision() -> str:
    return max(_known_revisions())


def _known_revisions() -> frozenset[str]:
    """Those of `migrations/`, by the names of its files."""
    return frozenset(file.name.partition("_")[0] for file in (FOLDER / "versions").glob("*.py"))


def _upgrade_checked(url: str) -> None:
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    try:
        upgrade(url)
    except SQLAlchemyError as error:
        raise unusable("DATABASE_URL", url, error) from error
