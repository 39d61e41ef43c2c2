"""Encrypts secrets that are stored in rows: an owner's key encrypts values, and a master key wraps the owner's key.

AES-SIV (RFC 5297) seals values: equal values have equal ciphertexts, so that equal tool sets remain equal in storage.
Rows of one owner therefore reveal only whether two secrets are equal. AES-256-GCM wraps keys.
"""

import secrets
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from turnstream.domain.errors import CannotOpen
from turnstream.extension import MasterKey
from turnstream.tools.secrets import SEALED

EARLIER: Final = "earlier key"  # the context in which the next key encrypts a key
_MASTER_BYTES = 32
_OWNER_BYTES = 64  # AES-SIV uses one half for the authentication
_NONCE_BYTES = 12
_ID_BYTES = 8
_CHANGED = "A stored secret was changed, or belongs to another owner or place."


class _GivenKey:
    def __init__(self, key: bytes) -> None:
        # The id reveals nothing about the key, because a key has 256 random bits.
        self.id, self._cipher = id_of(b"turnstream master key\0" + key), AESGCM(key)

    async def wrap(self, owner: str, key: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, key, owner.encode())

    async def unwrap(self, owner: str, wrapped: bytes) -> bytes:
        try:
            return self._cipher.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], owner.encode())
        except InvalidTag:
            raise CannotOpen(f"The stored key of {owner} was changed, or belongs to another owner.") from None


class MasterKeys:
    """The first key wraps the keys of owners. Each key can unwrap the owners' keys that it wrapped."""

    def __init__(self, keys: Sequence[MasterKey]) -> None:
        """Raises ValueError if there is no key."""
        if not keys:
            raise ValueError("there must be at least one key")
        self._keys = {key.id: key for key in keys}
        self.ids = tuple(self._keys)
        self.first = self.ids[0]

    @classmethod
    def read(cls, text: str, find: Callable[[str], MasterKey | None] = lambda _: None) -> Self:
        """Reads keys in base64, or names that `find` knows, separated by commas or line breaks. Raises ValueError,
        whose text contains no part of a key.
        """
        keys = list[MasterKey]()
        for place, item in enumerate(text.replace(",", " ").split(), 1):
            found = find(item)
            if found is None:
                try:
                    key = b64decode(item, validate=True)
                except (NotBase64, ValueError):
                    raise ValueError(f"key {place} must be base64 of {_MASTER_BYTES} bytes") from None
                if len(key) != _MASTER_BYTES:
                    raise ValueError(f"key {place} must have {_MASTER_BYTES} bytes, not {len(key)}")
                found = _GivenKey(key)
            keys.append(found)
        return cls(keys)

    async def wrap(self, owner: str, key: bytes, by: bytes | None = None) -> bytes:
        """Wraps an owner's key. `by` is the id of the master key that wraps it; the default is the first master key."""
        id = by or self.first
        return id + await self._keys[id].wrap(owner, key)

    async def unwrap(self, owner: str, wrapped: bytes) -> bytes:
        """Unwraps an owner's key. Raises CannotOpen and StorageUnavailable."""
        id = wrapped[:_ID_BYTES]
        if id not in self._keys:
            raise CannotOpen(f"The key of {owner} is wrapped by the master key {id.hex()}, which this server lacks.")
        return await self._keys[id].unwrap(owner, wrapped[_ID_BYTES:])


class OwnerKey:
    """Encrypts the values of one owner. `context` is the place of a value: the value can be decrypted only with the
    same context. `master` is the id of the master key that wraps this key. `earlier` is the owner's previous key,
    encrypted by this key, so that older values can still be decrypted.
    """

    def __init__(self, key: bytes, master: bytes = b"", earlier: bytes | None = None) -> None:
        self._cipher = AESSIV(key)
        self.master = master
        self._earlier: OwnerKey | None = None
        self._earlier = OwnerKey(self.decrypt(earlier, EARLIER)) if earlier else None

    def seal(self, value: str, *context: str) -> str:
        return SEALED + urlsafe_b64encode(self.encrypt(value.encode(), *context)).decode()

    def open(self, sealed: str, *context: str) -> str:
        """Decrypts the result of `seal`. Raises CannotOpen."""
        try:
            return self.decrypt(urlsafe_b64decode(sealed.removeprefix(SEALED)), *context).decode()
        except ValueError:
            raise CannotOpen(_CHANGED) from None

    def encrypt(self, value: bytes, *context: str) -> bytes:
        # The zero byte makes every text non-empty: a header may be empty, and AES-SIV refuses an empty text.
        return self._cipher.encrypt(b"\0" + value, [part.encode() for part in context])

    def decrypt(self, sealed: bytes, *context: str) -> bytes:
        """Decrypts the result of `encrypt`, which this key or an earlier key has encrypted. Raises CannotOpen."""
        try:
            return self._cipher.decrypt(sealed, [part.encode() for part in context])[1:]
        except (InvalidTag, ValueError):
            if self._earlier is not None:
                return self._earlier.decrypt(sealed, *context)
            raise CannotOpen(_CHANGED) from None


def is_sealed(value: str) -> bool:
    return value.startswith(SEALED)


def new_master_key() -> str:
    return b64encode(secrets.token_bytes(_MASTER_BYTES)).decode()


def new_owner_key() -> bytes:
    return secrets.token_bytes(_OWNER_BYTES)


def id_of(name: bytes) -> bytes:
    return sha256(name).digest()[:_ID_BYTES]
