"""The configured database: its URLs, connections, existence and name."""

import getpass
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from turnstream.config import Settings
from turnstream.extension import Extension, own_database, secrets_of, selected
from turnstream.storage.database import Database, address_of, connect, in_schema, plain_url
from turnstream.storage.migrations import upgrade_in_thread
from turnstream.storage.row_security import admit, embedded_api_url


@asynccontextmanager
async def database_url(settings: Settings, extensions: Sequence[Extension] | None = None) -> AsyncIterator[str]:
    """Yields the URL of Postgres. An embedded Postgres runs until the end of the block. `extensions` replace the
    extensions of the settings.
    """
    if settings.database_url is not None:
        yield addressed(settings, settings.database_url.get_secret_value())
    else:
        async with own_database(settings, extensions).open() as url:
            yield addressed(settings, url)


def session_url(settings: Settings, url: str) -> str:
    """Returns the URL for connections that bypass a pooler: for migrations, notifications, and the lock that shows that
    a replica lives. It is `url` unless the settings have another URL for this.
    """
    if settings.session_url is None:
        return url
    return addressed(settings, settings.session_url.get_secret_value(), "TURNSTREAM_SESSION_URL", past_pooler=True)


def addressed(settings: Settings, url: str, setting: str = "DATABASE_URL", *, past_pooler: bool = False) -> str:
    """Returns `url` in the driver's form, with the schema of the tables. The schema is omitted for a pooler, because
    poolers refuse or forget it: the role must have it (`connect` checks this).
    """
    plain, pooled = plain_url(url, setting), settings.session_url is not None and not past_pooler
    return plain if pooled or settings.db_schema is None else in_schema(plain, settings.db_schema)


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[Database]:
    """Opens and migrates the database of the settings. Creates an embedded database if there is none."""
    async with database_url(settings) as url:
        direct_url = session_url(settings, url)
        await upgrade_in_thread(direct_url)
        secrets = secrets_of(settings, selected(settings), make=False)
        async with (
            connect(direct_url, size=settings.pool_size, actor=actor()) as database,
            secrets.codec(direct_url) as database.codec,
        ):
            yield database


@asynccontextmanager
async def open_present_database(settings: Settings) -> AsyncIterator[Database]:
    """Opens the database for a command that needs an existing one. Raises ConfigError if an embedded one is missing."""
    check_present(settings)
    async with open_database(settings) as database:
        yield database


def actor() -> str:
    """Returns the person who runs a command, for the audit trail."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # an account without a name, as in some containers
        return f"{os.getuid()}@{socket.gethostname()}"


@asynccontextmanager
async def api_database(settings: Settings, url: str, everything: Database, **options: Any) -> AsyncIterator[Database]:
    """Opens the API's database. If the API has its own role, row-level security limits it to the owner of a request.
    Otherwise it is `everything`. `url` is the URL of the migrated database.
    """
    if settings.api_database_url is not None:
        api_url = addressed(settings, settings.api_database_url.get_secret_value(), "TURNSTREAM_API_DATABASE_URL")
    elif settings.database_url is None:
        api_url = await embedded_api_url(url)
    else:
        yield everything
        return
    key = await admit(url, api_url)
    async with connect(api_url, key=key, **options) as database:
        yield database


def check_present(settings: Settings) -> None:
    """Raises ConfigError if an embedded database does not exist, because the command runs in the wrong folder."""
    if settings.database_url is None:
        own_database(settings).check_made()


def database_name(settings: Settings) -> str:
    """Returns the name of the database for display, without user and password."""
    if settings.database_url is None:
        return f"the database {own_database(settings).name}"
    return f"the database of DATABASE_URL ({address_of(settings.database_url.get_secret_value())})"
