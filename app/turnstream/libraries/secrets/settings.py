"""The settings of the keys that encrypt secrets in rows."""

from typing import Final

from pydantic import Field, SecretStr

from turnstream.config import Section

# The name of the extension that has these settings.
NAME: Final = "keys"


class KeySettings(Section):
    master_key: SecretStr | None = Field(
        None,
        description="keys for secrets in rows, each 32 bytes in base64, separated by commas: the first encrypts, all"
        " decrypt; an embedded database has a file with its own",
    )
    require_encryption: bool = Field(
        False, description="refuse to start without a master key, and secrets that cannot be encrypted"
    )
