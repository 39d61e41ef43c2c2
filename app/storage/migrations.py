"""Migration of a database to the newest revision of `migrations/`. Alembic and SQLAlchemy, a fifth of a second, are
imported where there is something to migrate.
"""

import asyncio
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
    database cannot be reached, or is of a newer version.
    """
    try:
        if await _revisions(url) != [newest_revision()]:
            await asyncio.to_thread(_upgrade_checked, url)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise _unusable(error) from error


def newest_revision() -> str:
    """The newest of `migrations/`, by the names of its files."""
    return max(file.name.partition("_")[0] for file in (FOLDER / "versions").glob("*.py"))


async def _revisions(url: str) -> list[str]:
    connection = await asyncpg.connect(plain_url(url))
    try:
        with suppress(asyncpg.UndefinedTableError):
            return [row["version_num"] for row in await connection.fetch("SELECT version_num FROM alembic_version")]
    finally:
        await connection.close()
    return []


def _upgrade_checked(url: str) -> None:
    from alembic.util import CommandError  # noqa: PLC0415
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    try:
        upgrade(url)
    except CommandError as error:  # the revision of the database is unknown here
        raise ConfigError(
            f"DATABASE_URL: {error}: a newer turnstream has used this database. Run that version, or let it downgrade"
            " the database to a revision that this version knows: `alembic downgrade REVISION`"
        ) from error
    except SQLAlchemyError as error:
        raise _unusable(error) from error


def _unusable(error: Exception) -> ConfigError:
    return ConfigError(f"DATABASE_URL names a database that cannot be used: {str(error) or type(error).__name__}")
