"""Bringing a database to the newest revision of `migrations/`."""

import asyncio
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from app.domain.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "migrations"


def alembic_config(url: str) -> Config:
    """Alembic's configuration for `url` (postgresql://…)."""
    if not (FOLDER / "env.py").is_file():
        raise ConfigError(f"the migrations are not at {FOLDER}; run turnstream from its source folder or image")
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
    """The same, inside an event loop. Raises ConfigError where no such database can be reached."""
    try:
        await asyncio.to_thread(upgrade, url)
    except CommandError as error:  # it does not know the revision that the database is at
        raise ConfigError(
            f"DATABASE_URL: {error}: a newer turnstream has used this database. Run that one, or have it take the"
            " database back to a revision that this one knows: `alembic downgrade REVISION`"
        ) from error
    except (OSError, SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ConfigError(f"DATABASE_URL: the database cannot be used: {error}") from error
