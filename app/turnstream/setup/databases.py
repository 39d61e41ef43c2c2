"""The configured database: connection, existence, name."""

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
    """The URL of Postgres. An embedded Postgres runs until the end of the block. `extensions` replace those of the
    settings.
    """
    if settings.database_url is not None:
        yield addressed(settings, settings.database_url.get_secret_value())
    else:
        async with own_database(settings, extensions).open() as url:
            yield addressed(settings, url)


def session_url(settings: Settings, url: str) -> str:
    """The URL for connections that bypass a pooler: migrations, notifications, and the lock that shows a live replica.
    It is `url` unless there is another one.
    """
    if settings.session_url is None:
        return url
    return addressed(settings, settings.session_url.get_secret_value(), "TURNSTREAM_SESSION_URL", past_pooler=True)


def addressed(settings: Settings, url: str, setting: str = "DATABASE_URL", *, past_pooler: bool = False) -> str:
    """`url` in the driver's form, with the schema of the tables. For a pooler the schema is omitted: poolers refuse or
    forget it, and the role has it (`connect` sets it).
    """
    plain, pooled = plain_url(url, setting), settings.session_url is not None and not past_pooler
    return plain if pooled or settings.db_schema is None else in_schema(plain, settings.db_schema)


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[Database]:
    """The database of the settings, migrated. An embedded one is created if there is none."""
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
    """The same for commands on an existing database. Raises ConfigError if an embedded one does not exist."""
    check_present(settings)
    async with open_database(settings) as database:
        yield database


def actor() -> str:
    """The person who runs a command, for the audit trail."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # an account without a name, as in some containers
        return f"{os.getuid()}@{socket.gethostname()}"


@asynccontextmanager
async def api_database(settings: Settings, url: str, everything: Database, **options: Any) -> AsyncIterator[Database]:
    """The API's database. If a role is configured, row-level security limits it to the owner of a request; otherwise it
    is `everything`. `url` is the URL of the migrated database.
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
    """Raises ConfigError if an embedded database does not exist: the command runs in the wrong folder."""
    if settings.database_url is None:
        own_database(settings).check_made()


def database_name(settings: Settings) -> str:
    """The name of the database for display, without user and password."""
    if settings.database_url is None:
        return f"the database {own_database(settings).name}"
    return f"the database of DATABASE_URL ({address_of(settings.database_url.get_secret_value())})"
