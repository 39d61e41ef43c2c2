"""Encrypts the contents of conversations when they are stored, with a key for each owner."""

from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension
from turnstream.libraries.secrets.settings import KeySettings

if TYPE_CHECKING:
    from turnstream.libraries.secrets.owner_keys import OwnerKeys
    from turnstream.llm.models.catalog import Models
    from turnstream.storage.contents import Codec

NAME = "encryption"


class EncryptionSettings(Section):
    encrypt_texts: bool = Field(
        False, description="conversations, uploads and documents are encrypted with the key of their owner"
    )


async def _check(settings: Settings, _: "Models", __: bool) -> str:
    if not settings.section(EncryptionSettings).encrypt_texts:
        return "contents are stored as they are"
    if settings.section(KeySettings).master_key is None and settings.database_url is not None:
        raise ConfigError("TURNSTREAM_ENCRYPT_TEXTS needs TURNSTREAM_MASTER_KEY, which wraps the keys of owners.")
    return "messages, uploads and documents are stored encrypted"


def _codec(settings: Settings, keys: "OwnerKeys") -> "Codec":
    from turnstream.extensions.encryption.codec import SealingCodec

    return SealingCodec(keys, seals=settings.section(EncryptionSettings).encrypt_texts)


EXTENSION = Extension(
    NAME,
    "encryption of texts and files at rest",
    settings=EncryptionSettings,
    checks={"encryption": _check},
    codec=_codec,
    commands={"encryption": "turnstream.extensions.encryption.command"},
)
