"""Reads the master keys from the settings, or from a file beside an embedded database."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension, own_database, selected
from turnstream.libraries.secrets.owner_keys import OwnerKeys, count_lost_keys
from turnstream.libraries.secrets.request_secrets import SealedSecrets
from turnstream.libraries.secrets.sealing import MasterKeys
from turnstream.libraries.secrets.settings import NAME, KeySettings
from turnstream.storage.contents import Codec
from turnstream.storage.database import Database, connect_when_used

log = structlog.get_logger(__name__)

_CONNECTIONS = 2  # connections that the codec opens
HOW_TO_MAKE: Final = "`openssl rand -base64 32` makes one; all replicas need the same"


def master_keys(
    settings: Settings, extensions: Sequence[Extension] | None = None, *, make: bool = True
) -> MasterKeys | None:
    """Returns the master keys of the settings. Without such keys, an embedded database uses its key file; if `make` is
    true, a missing key file is created. Returns None if there is no key, or if the server lacks the extension `keys`.
    Raises ConfigError.
    """
    chosen = selected(settings) if extensions is None else extensions
    if all(each.name != NAME for each in chosen):
        return None
    given = settings.section(KeySettings)
    if given.master_key is not None:
        return read_master_keys("TURNSTREAM_MASTER_KEY", given.master_key.get_secret_value(), settings, chosen)
    if settings.database_url is None and (found := own_database(settings, chosen).master_key(make=make)):
        return read_master_keys(*found, settings, chosen)
    if given.require_encryption:
        raise ConfigError(
            f"TURNSTREAM_MASTER_KEY must be set, because TURNSTREAM_REQUIRE_ENCRYPTION is: {HOW_TO_MAKE}."
        )
    return None


@dataclass(frozen=True, slots=True)
class SecretRows:
    """Encrypts secrets in rows for a server with these settings. Without `masters`, secrets stay in plain text."""

    settings: Settings
    extensions: Sequence[Extension]
    masters: MasterKeys | None

    @property
    def ids(self) -> Sequence[bytes]:
        return self.masters.ids if self.masters else ()

    @asynccontextmanager
    async def codec(self, url: str) -> AsyncIterator[Codec | None]:
        """Yields the codec of the first extension that has a codec. The codec reads keys through separate connections,
        because a transaction that waits for a key already uses one of the server's connections. Yields None without a
        master key.
        """
        options = _CONNECTIONS, self.settings.postgres_timeout, self.settings.statement_cache, None
        async with connect_when_used("keys", url, *options) as database:
            keys = self._keys(database)
            found = (each.codec(self.settings, keys) for each in self.extensions if keys)
            yield next((codec for codec in found if codec is not None), None)

    async def of_requests(self, database: Database) -> SealedSecrets:
        """Returns the secrets of requests. Logs a warning or an error if secrets are stored in plain text or cannot be
        decrypted.
        """
        if lost := await count_lost_keys(database, self.ids):
            log.error("secrets.locked", owners=lost, remedy="set TURNSTREAM_MASTER_KEY to the keys that it had before")
        if self.masters is None:
            log.warning("secrets.plain", remedy=f"set TURNSTREAM_MASTER_KEY: {HOW_TO_MAKE}")
        return SealedSecrets(self._keys(database))

    def _keys(self, database: Database) -> OwnerKeys | None:
        required = self.settings.section(KeySettings).require_encryption
        return OwnerKeys(database, self.masters, required=required) if self.masters else None


def secret_rows(settings: Settings, extensions: Sequence[Extension], make: bool) -> SecretRows:
    """Returns the encryption of a server with these settings. If `make` is true, a missing key file is created. Raises
    ConfigError.
    """
    return SecretRows(settings, extensions, master_keys(settings, extensions, make=make))


def read_master_keys(
    name: str, text: str, settings: Settings, extensions: Sequence[Extension] | None = None
) -> MasterKeys:
    """Reads the master keys in `text`. `name` is the source of the text, for errors. Raises ConfigError."""
    chosen = selected(settings) if extensions is None else extensions
    try:
        return MasterKeys.read(
            text, lambda item: next(filter(None, (e.master_key(settings, item) for e in chosen)), None)
        )
    except ValueError as error:
        raise ConfigError(f"{name}: {error}.") from None
