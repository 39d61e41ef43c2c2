"""The database of the settings."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.config import Settings
from app.storage.database import Database, connect, plain_url
from app.storage.embedded.server import embedded_postgres
from app.storage.migrations import upgrade_in_thread


@asynccontextmanager
async def database_url(settings: Settings) -> AsyncIterator[str]:
    """Where Postgres is: the embedded one runs for as long as it is wanted."""
    if settings.database_url is not None:
        yield plain_url(settings.database_url.get_secret_value())
    else:
        async with embedded_postgres(settings.data_dir) as url:
            yield url


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[Database]:
    """The database of the settings, migrated."""
    async with database_url(settings) as url:
        await upgrade_in_thread(url)
        async with connect(url, size=settings.pool_size) as database:
            yield database
