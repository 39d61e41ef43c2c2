"""Migration of a database to the newest revision of `migrations/`. Alembic and SQLAlchemy, a fifth of a second, are
imported where there is something to migrate.
"""

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from app.domain.errors import ConfigError
from app.storage.database import plain_url

if TYPE_CHECKING:
    from alembic.config import Config

_PACKAGE = Path(__file__).parents[1]
# A wheel carries them inside the package; in the source tree they stand beside it.
FOLDER = next(filter(Path.is_dir, [_PACKAGE / "migrations"]), _PACKAGE.parent / "migrations")

_OURS = re.compile("[0-9]{4}")
_REVISIONS = "SELECT version_num FROM alembic_version"
_FIRST_TABLES = ["chats", "turns", "blocks", "rounds", "documents", "tokens"]
_TABLES = """
SELECT relname FROM pg_class
WHERE relkind IN ('r', 'v', 'p', 'm', 'f') AND relnamespace = to_regnamespace(current_schema()) AND relname = ANY($1)
ORDER BY relname
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


async def present_revision(url: str) -> str | None:
    """The revision of the database, None for one without tables. Raises ConfigError where it cannot be migrated."""
    try:
        connection = await asyncpg.connect(plain_url(url))
        try:
            # In this order: the tables of another process that migrates now are committed together with its revision.
            tables = [each["relname"] for each in await connection.fetch(_TABLES, _FIRST_TABLES)]
            revisions: list[str] = []
            with suppress(asyncpg.UndefinedTableError):
                revisions = [each["version_num"] for each in await connection.fetch(_REVISIONS)]
        finally:
            await connection.close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise _unusable(error) from error
    if (tables and not revisions) or not all(map(_OURS.fullmatch, revisions)):
        what = f"the revision {revisions[0]!r} of Alembic" if revisions else f"the tables {', '.join(tables)}"
        raise ConfigError(
            f"DATABASE_URL names a database that another program uses: it has {what}. Nothing was changed. Give"
            " turnstream a database of its own, or a schema by `?search_path=SCHEMA` at the end of the URL."
        )
    if unknown := sorted({*revisions} - _known_revisions()):
        raise ConfigError(
            f"DATABASE_URL: the revision {unknown[0]!r} of the database is not known here: a newer turnstream has used"
            " it. Run that version, or let it downgrade the database to a revision that this version knows:"
            " `alembic downgrade REVISION`"
        )
    return revisions[0] if revisions else None


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
        raise _unusable(error) from error


def _unusable(error: Exception) -> ConfigError:
    return ConfigError(f"DATABASE_URL names a database that cannot be used: {str(error) or type(error).__name__}")
