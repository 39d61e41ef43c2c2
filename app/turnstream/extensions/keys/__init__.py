"""Encrypts the secrets of tools that requests declare, before they are stored in rows. Each owner has a key. Commands
show the state of the keys, change the master key, and encrypt older rows.
"""

from collections.abc import Sequence

from turnstream.config import Settings
from turnstream.extension import Extension, Secrets
from turnstream.libraries.secrets.settings import NAME, KeySettings


def _secrets(settings: Settings, extensions: Sequence[Extension], make: bool) -> Secrets:
    """Returns the encryption of secrets that the settings describe. Raises ConfigError."""
    from turnstream.libraries.secrets.master_keys import secret_rows

    return secret_rows(settings, extensions, make)


EXTENSION = Extension(
    NAME,
    "encryption of secrets in rows, and its commands",
    settings=KeySettings,
    secrets=_secrets,
    commands={"keys": "turnstream.extensions.keys.command"},
)
