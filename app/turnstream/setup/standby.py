"""The standby of the settings, for reads that may be some seconds old."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from uuid import UUID

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.setup.databases import addressed
from turnstream.storage.database import Database, connect_when_used, plain_url
from turnstream.storage.runs.queue import Renewals
from turnstream.storage.standby import PATIENCE, Standby

# Renewals of the lease within the time by which a standby may be old: its reads are older than the last one it shows.
_RENEWALS = 5


def renewal_interval(settings: Settings) -> float | None:
    """Seconds between two renewals of the lease, from which the age of a standby is known; None without one."""
    return None if settings.standby_url is None else settings.standby_staleness / _RENEWALS


@asynccontextmanager
async def open_standby(
    settings: Settings, api: Database, replica: UUID, renewals: Renewals
) -> AsyncIterator[Standby | None]:
    """None without one in the settings. It knows owners as `api` does, the database of the API."""
    url = standby_url(settings)
    if url is None:
        yield None
        return
    options = settings.pool_size, PATIENCE, settings.statement_cache, api.key
    async with connect_when_used("standby", url, *options) as database:
        yield Standby(database, replica, renewals)


def standby_url(settings: Settings) -> str | None:
    """The URL of the standby. Raises ConfigError where it does not fit that of the primary."""
    if settings.standby_url is None:
        return None
    if settings.database_url is None:
        raise ConfigError("TURNSTREAM_STANDBY_URL must be set with DATABASE_URL: the embedded Postgres has no standby.")
    url = plain_url(settings.standby_url.get_secret_value(), "TURNSTREAM_STANDBY_URL")
    if settings.api_database_url is not None:
        api_url = plain_url(settings.api_database_url.get_secret_value(), "TURNSTREAM_API_DATABASE_URL")
        user = urlsplit(api_url).username
        if urlsplit(url).username != user:
            raise ConfigError(
                f"TURNSTREAM_STANDBY_URL must have the user of TURNSTREAM_API_DATABASE_URL, {user}: row-level security"
                " holds that one to the rows of an owner."
            )
    return addressed(settings, url)
