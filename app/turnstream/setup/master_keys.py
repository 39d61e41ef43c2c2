"""The master keys of the settings, or of a file beside an embedded database."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension
from turnstream.kit.sealing import MasterKeys, new_master_key
from turnstream.setup.databases import own_database


def master_keys(settings: Settings, extensions: Sequence[Extension] | None = None) -> MasterKeys | None:
    """None where DATABASE_URL names a database and no setting a key. Raises ConfigError."""
    given, file = settings.master_key, settings.master_key_file
    if given is not None and file is not None:
        raise ConfigError("TURNSTREAM_MASTER_KEY and TURNSTREAM_MASTER_KEY_FILE must not both be set.")
    if given is not None:
        return _read("TURNSTREAM_MASTER_KEY", given.get_secret_value())
    if file is not None:
        return _read("TURNSTREAM_MASTER_KEY_FILE", _text_of(file))
    if settings.database_url is not None:
        return None
    own = own_database(settings, extensions).master_key_file
    if own is None:
        return None
    _make(own)
    return _read(str(own), _text_of(own))


def _make(file: Path) -> None:
    """Makes the file whole or not at all: another process may start at the same time."""
    if file.exists():
        return
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        draft.touch(mode=0o600)
        draft.write_text(f"{new_master_key()}\n", encoding="ascii")
        with suppress(FileExistsError):
            os.link(draft, file)
    except OSError as error:
        raise ConfigError(f"The master key cannot be written to {file}: {error.strerror}.") from error
    finally:
        draft.unlink(missing_ok=True)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"TURNSTREAM_MASTER_KEY_FILE: {file} cannot be read: {error}.") from error


def _read(name: str, text: str) -> MasterKeys:
    try:
        return MasterKeys.read(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}.") from None
