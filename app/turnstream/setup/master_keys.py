"""The master keys from the settings, or from a file beside an embedded database."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension, own_database
from turnstream.kit.sealing import MasterKeys, new_master_key
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
        return read_master_keys("TURNSTREAM_MASTER_KEY", settings.master_key.get_secret_value())
    if settings.database_url is None:
        file = own_database(settings, extensions).master_key_file
        if file is not None and (make or file.exists()):
            return read_master_keys(str(file), _text_of(file))
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


def _text_of(file: Path) -> str:
    """Makes the file if there is none: whole or not at all, because another process may start at the same time."""
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        if not file.exists():
            file.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            draft.touch(mode=0o600)
            draft.write_text(f"{new_master_key()}\n", encoding="ascii")
            _sync(draft)
            with suppress(FileExistsError):
                os.link(draft, file)
            # The rows that the key encrypts survive a loss of power, and so must the key.
            _sync(file.parent)
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The file of the master key, {file}, cannot be made or read: {error}.") from None
    finally:
        with suppress(OSError):
            draft.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_master_keys(name: str, text: str) -> MasterKeys:
    """Raises ConfigError."""
    try:
        return MasterKeys.read(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}.") from None
