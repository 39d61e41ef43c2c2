"""Migration of a database to the newest revision of `migrations/`."""

import asyncio
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from app.domain.errors import ConfigError

_PACKAGE = Path(__file__).parents[1]
# A wheel carries them inside the package; in the source tree they stand beside it.
FOLDER = next(filter(Path.is_dir, [_PACKAGE / "migrations"]), _PACKAGE.parent / "migrations")


def alembic_config(url: str) -> Config:
    """Alembic's configuration for `url` (postgresql://…)."""
    if not (FOLDER / "env.py").is_file():
        raise ConfigError(f"The migrations are not at {FOLDER}. Install turnstream again.")
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["url"] = url
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Migrates the database, waiting for any other process that is doing so. Not to be called inside an event loop."""
    command.upgrade(alembic_config(url), revision)


def downgrade(url: str, revision: str) -> None:
    command.downgrade(alembic_config(url), revision)


async def upgrade_in_thread(url: str) -> None:
    """`upgrade` inside an event loop. Raises ConfigError where the database cannot be reached, or is of a newer
    version.
    """
    try:
        await asyncio.to_thread(upgrade, url)
    except CommandError as error:  # the revision of the database is unknown here
        raise ConfigError(
            f"DATABASE_URL: {error}: a newer turnstream has used this database. Run that version, or let it downgrade"
            " the database to a revision that this version knows: `alembic downgrade REVISION`"
        ) from error
    except (OSError, SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ConfigError(
            f"DATABASE_URL names a database that cannot be used: {str(error) or type(error).__name__}"
        ) from error
