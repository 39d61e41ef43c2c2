"""Contents as they are stored: encrypted by the key of their owner, bound to their table, column and row.

AES-SIV gives the same text for the same value in the same row, so that a write can be repeated, and compared by SQL.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from time import monotonic
from typing import Any, Final

from turnstream.domain.errors import Conflict
from turnstream.domain.identity import owner_before_move
from turnstream.extensions.encryption import NAME
from turnstream.kit.offload import offload
from turnstream.kit.sealing import CannotOpen, OwnerKey
from turnstream.storage.contents import BYTES_MARK, TEXT_MARK, SealedColumns
from turnstream.storage.database import OWNER
from turnstream.storage.owners.owner_keys import OwnerKeys

KEPT: Final = 5.0  # seconds that a key, or the answer that all replicas can decrypt, is used without another look
_MOST = 1000  # keys in memory
_JSON_MARK: Final = f'{{"sealed":"{TEXT_MARK}'
_HEAD: Final = re.compile(re.escape(TEXT_MARK) + "[0-9]{1,9}:")


class SealingCodec:
    """Opens what is sealed. It seals only if `seals` is set and each live replica can open it: while one cannot, new
    contents stay plain, or are refused if encryption is required. The key of an erased owner is forgotten after `KEPT`
    seconds.
    """

    def __init__(self, keys: OwnerKeys, *, seals: bool, clock: Callable[[], float] = monotonic) -> None:
        self._keys = keys
        self._seals = seals
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, OwnerKey | None]] = OrderedDict()
        self._unable: dict[bytes, tuple[float | None, str | None]] = {}  # a replica by the master key that it lacks

    @property
    def owners_in_memory(self) -> int:
        return len(self._known)

    async def seal(self, contents: SealedColumns, values: Mapping[str, Any]) -> dict[str, Any]:
        given = {contents.name(column) for column in contents.columns}
        found = {name: value for name in given if (value := values.get(name)) is not None}
        if not found or not (self._seals or any(map(_looks_sealed, found.values()))):
            return dict(values)
        key = await self._sealing_key(values.get("owner") or OWNER.get())
        if key is None:
            return dict(values)
        return await offload(sum(map(_size, found.values())), _sealed, key, contents, dict(values))

    async def open(
        self, contents: SealedColumns, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        names = [(contents.name(column), column) for column in contents.columns]
        opened = list[Mapping[str, Any]]()
        for row in rows:
            sealed = {name: column for name, column in names if _looks_sealed(row.get(name))}
            if not sealed:
                opened.append(row)
                continue
            owner = values.get("owner") or row.get("owner") or OWNER.get()
            key = await self._opening_key(owner)
            try:
                size = sum(_size(row[name]) for name in sealed)
                opened.append(await offload(size, _opened, key, contents, sealed, values, row))
            except CannotOpen as error:
                raise _locked(owner, error) from error
        return opened

    async def _opening_key(self, owner: str) -> OwnerKey:
        try:
            key = await self._key(owner, self._keys.find)
        except CannotOpen as error:
            raise _locked(owner, error) from error
        if key is None:
            raise _locked(owner, CannotOpen(f"There is no key of {owner}: it was erased."))
        return key

    async def _sealing_key(self, owner: str) -> OwnerKey | None:
        try:
            key = await self._key(owner, self._keys.find_or_create)
        except CannotOpen as error:
            raise _locked(owner, error) from error
        assert key is not None
        until, replica = self._unable.get(key.master, (None, None))
        if until is None or until < self._clock():
            replica = await self._keys.replica_without_key(key.master, NAME)
            self._unable[key.master] = (self._clock() + KEPT, replica)
        if replica is None:
            return key
        if self._keys.required:
            raise Conflict(
                f"Contents cannot be encrypted while the replica {replica} lacks the master key or the extension"
                " encryption: try again when it has them, or has been away for five minutes."
            )
        return None

    async def _key(self, owner: str, find: Callable[[str], Any]) -> OwnerKey | None:
        owner = owner_before_move(owner)
        until, key = self._known.get(owner, (0.0, None))
        if key is None or until < self._clock():
            key = await find(owner)
            self._known[owner] = (self._clock() + KEPT, key)
            self._known.move_to_end(owner)
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        return key


def _locked(owner: str, error: CannotOpen) -> Conflict:
    return Conflict(f"Stored contents of {owner} cannot be decrypted. {error}")


def _looks_sealed(value: object) -> bool:
    if isinstance(value, str):
        return value.startswith((TEXT_MARK, _JSON_MARK))
    return isinstance(value, bytes) and value.startswith(BYTES_MARK)


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 0


def _place(contents: SealedColumns, column: str, values: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, ...]:
    """The place of a value, in which alone it opens."""
    names = [contents.name(name) for name in contents.key]
    parts = [row[name] if name in row else values[name] for name in names]
    return contents.table, column, *(part.hex() if isinstance(part, bytes) else str(part) for part in parts)


def _sealed(key: OwnerKey, contents: SealedColumns, values: dict[str, Any]) -> dict[str, Any]:
    """The digest comes first: it may be the key of the row."""
    for column, kind in sorted(contents.columns.items(), key=lambda each: each[1] != "digest"):
        name = contents.name(column)
        if (value := values.get(name)) is None:
            continue
        if kind == "digest":
            values[name] = sha256(key.encrypt(value, contents.table, column)).digest()
            continue
        place = _place(contents, column, {}, values)
        if kind == "bytes":
            values[name] = BYTES_MARK + key.encrypt(value, *place)
        else:
            text = _sealed_text(key, value, place)
            values[name] = text if kind == "text" else f'{{"sealed":"{text}"}}'
    return values


def _sealed_text(key: OwnerKey, value: str, place: Sequence[str]) -> str:
    return f"{TEXT_MARK}{len(value)}:{urlsafe_b64encode(key.encrypt(value.encode(), *place)).decode()}"


def _opened(
    key: OwnerKey, contents: SealedColumns, sealed: Mapping[str, str], values: Mapping[str, Any], row: Mapping[str, Any]
) -> Mapping[str, Any]:
    opened = dict(row)
    for name, column in sealed.items():
        opened[name] = _opened_value(key, row[name], _place(contents, column, values, row))
    return opened


def _opened_value(key: OwnerKey, value: str | bytes, place: Sequence[str]) -> str | bytes:
    if isinstance(value, bytes):
        return key.decrypt(value.removeprefix(BYTES_MARK), *place)
    text = value[len('{"sealed":"') : value.index('"', len(_JSON_MARK))] if value.startswith(_JSON_MARK) else value
    head = _HEAD.match(text)
    try:
        return key.decrypt(urlsafe_b64decode(text[head.end() if head else 0 :]), *place).decode()
    except ValueError:
        raise CannotOpen("A stored text was changed, or belongs to another owner or place.") from None
