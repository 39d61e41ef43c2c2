"""Keeps the master key in a file beside an embedded database."""

import os
from contextlib import suppress
from pathlib import Path

from turnstream.domain.errors import ConfigError
from turnstream.libraries.secrets.sealing import new_master_key


def text_of(file: Path) -> str:
    """Returns the text of the file. A missing file is created either completely or not at all, because another process
    may start at the same time.
    """
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        if not file.exists():
            file.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            draft.touch(mode=0o600)
            draft.write_text(f"{new_master_key()}\n", encoding="ascii")
            _sync(draft)
            with suppress(FileExistsError):
                os.link(draft, file)
            # Rows that are encrypted with the key survive a power loss, so the key must survive it, too.
            _sync(file.parent)
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The file of the master key, {file}, cannot be created or read: {error}.") from None
    finally:
        with suppress(OSError):
            draft.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
