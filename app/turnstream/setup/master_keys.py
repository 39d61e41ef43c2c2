"""The master keys from the settings, or from a file beside an embedded database."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension, own_database, selected
from turnstream.kit.sealing import MasterKeys
from turnstream.storage.contents import Codec
from turnstream.storage.database import Database, connect_when_used
from turnstream.storage.owners.owner_keys import OwnerKeys, count_lost_keys

log = structlog.get_logger(__name__)

_CONNECTIONS = 2  # of the codec
HOW_TO_MAKE = "`openssl rand -base64 32` makes one; all replicas need the same"


def master_keys(
    settings: Settings, extensions: Sequence[Extension] | None = None, *, make: bool = True
) -> MasterKeys | None:
    """None if DATABASE_URL names a database and no setting a key, and for an embedded database that has none and gets
    none (`make`). Raises ConfigError.
    """
    if settings.master_key is not None:
        text = settings.master_key.get_secret_value()
        return read_master_keys("TURNSTREAM_MASTER_KEY", text, settings, extensions)
    if settings.database_url is None and (found := own_database(settings, extensions).master_key(make=make)):
        return read_master_keys(*found, settings, extensions)
    if settings.require_encryption:
        raise ConfigError(
            f"TURNSTREAM_MASTER_KEY must be set, because TURNSTREAM_REQUIRE_ENCRYPTION is: {HOW_TO_MAKE}."
        )
    return None


async def opened_owner_keys(database: Database, masters: MasterKeys | None, settings: Settings) -> OwnerKeys | None:
    """Logs secrets that are stored in plain text, or cannot be decrypted."""
    if lost := await count_lost_keys(database, masters.ids if masters else ()):
        log.error("secrets.locked", owners=lost, remedy="set TURNSTREAM_MASTER_KEY to the keys that it had before")
    if masters is None:
        log.warning("secrets.plain", remedy=f"set TURNSTREAM_MASTER_KEY: {HOW_TO_MAKE}")
        return None
    return OwnerKeys(database, masters, required=settings.require_encryption)


@asynccontextmanager
async def open_codec(
    settings: Settings, extensions: Sequence[Extension], masters: MasterKeys | None, url: str
) -> AsyncIterator[Codec | None]:
    """The codec of the first extension that has one. It reads keys through connections of its own: a transaction that
    waits for a key has one of the others. Without a master key there is none.
    """
    options = _CONNECTIONS, settings.postgres_timeout, settings.statement_cache, None
    async with connect_when_used("keys", url, *options) as database:
        keys = OwnerKeys(database, masters, required=settings.require_encryption) if masters else None
        yield next((codec for each in extensions if keys and (codec := each.codec(settings, keys))), None)


def read_master_keys(
    name: str, text: str, settings: Settings, extensions: Sequence[Extension] | None = None
) -> MasterKeys:
    """Raises ConfigError."""
    chosen = selected(settings) if extensions is None else extensions
    try:
        return MasterKeys.read(
            text, lambda item: next(filter(None, (e.master_key(settings, item) for e in chosen)), None)
        )
    except ValueError as error:
        raise ConfigError(f"{name}: {error}.") from None
