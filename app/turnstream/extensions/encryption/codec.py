"""Contents as they are stored: encrypted by the key of their owner, bound to their table, column and row.

AES-SIV gives the same text for the same value in the same row, so that a write can be repeated, and compared by SQL.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from hashlib import sha256
from time import monotonic
from typing import Any, Final
from uuid import UUID

import msgspec

from turnstream.domain.errors import ClaimLost, Conflict
from turnstream.domain.identity import owner_before_move
from turnstream.extensions.encryption import NAME
from turnstream.kit.offload import BLOCK, offload
from turnstream.kit.sealing import CannotOpen, OwnerKey, new_owner_key
from turnstream.storage.contents import BYTES_MARK, TEXT_MARK, SealedColumns
from turnstream.storage.database import OWNER, Statement
from turnstream.storage.owners.owner_keys import OwnerKeys

KEPT: Final = 5.0  # seconds that a key, or the answer that all replicas can decrypt, is used without another look
_MOST = 1000  # keys in memory
_JSON_MARK: Final = f'{{"sealed":"{TEXT_MARK}'
_TURN_KEPT: Final = 60.0  # seconds that the owner of a turn is used without another look
_MOST_TURNS = 10_000
_ID: Final = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}")
_HEAD: Final = re.compile(re.escape(TEXT_MARK) + "[0-9]{1,9}:")
GET_OWNERS = Statement(
    "SELECT turns.id, owner FROM turns JOIN chats ON chats.id = chat_id WHERE turns.id = ANY(CAST(:turns AS uuid[]))"
)


class SealingCodec:
    """Opens what is sealed. It seals only if `seals` is set and each live replica can open it: while one cannot, new
    contents stay plain, or are refused if encryption is required. The key of an erased owner is forgotten after `KEPT`
    seconds.
    """

    def __init__(self, keys: OwnerKeys, *, seals: bool, clock: Callable[[], float] = monotonic) -> None:
        self._keys = keys
        self.seals = seals
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, OwnerKey | None]] = OrderedDict()
        self._owners: OrderedDict[UUID, tuple[float, str]] = OrderedDict()  # of turns
        self._unable: dict[bytes, tuple[float | None, str | None]] = {}  # a replica by the master key that it lacks

    @property
    def owners_in_memory(self) -> int:
        return len(self._known)

    async def seal(self, contents: SealedColumns, values: Mapping[str, Any]) -> dict[str, Any]:
        found = [value for column in contents.columns if (value := values.get(contents.name(column))) is not None]
        if not any(map(_has_value, found)) or not (self.seals or any(map(_looks_sealed, found))):
            return dict(values)
        turns = values.get(name := contents.name(contents.key[0]))
        rows = [{name: turn} for turn in turns] if isinstance(turns, list) else [values]
        owners = await self._owners_of(contents, values, rows)
        if not all(owners) and not isinstance(turns, list):
            raise ClaimLost(f"turn {turns} is not there any more")
        found_keys = {owner: await self._sealing_key(owner) for owner in dict.fromkeys(owners)}
        if not any(found_keys.values()):
            return dict(values)
        keys = [found_keys[owner] for owner in owners]
        return await offload(sum(map(_size, found)), _sealed, keys, contents, dict(values))

    async def open(
        self, contents: SealedColumns, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        names = [(contents.name(column), column) for column in contents.columns]
        sealed = dict[int, dict[str, str]]()
        for number, row in enumerate(rows):
            if found := {name: column for name, column in names if _looks_sealed(row.get(name))}:
                sealed[number] = found
        if not sealed:
            return rows
        owners = await self._owners_of(contents, values, [rows[number] for number in sealed])
        keys = {owner: await self._opening_key(owner) for owner in dict.fromkeys(owners)}
        size = sum(BLOCK + sum(_size(rows[number][name]) for name in found) for number, found in sealed.items())

        def opened() -> Sequence[Mapping[str, Any]]:
            given = list(rows)
            for (number, found), owner in zip(sealed.items(), owners, strict=True):
                try:
                    given[number] = _opened(keys[owner], contents, found, values, rows[number])
                except CannotOpen as error:
                    raise _locked(owner, error) from error
            return given

        return await offload(size, opened)

    async def _owners_of(
        self, contents: SealedColumns, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
    ) -> Sequence[str]:
        """The owner of each row: the one that the statement or the row names, or the one of its turn."""
        if owner := values.get("owner"):
            return [owner] * len(rows)
        turn = contents.name(contents.key[0])
        turns = [row.get(turn) or values.get(turn) for row in rows if not row.get("owner")]
        of_turns = await self._owners_of_turns({each for each in turns if isinstance(each, UUID)}) if turns else {}
        return [row.get("owner") or of_turns.get(row.get(turn) or values.get(turn), OWNER.get()) for row in rows]

    async def _owners_of_turns(self, turns: Set[UUID]) -> Mapping[Any, str]:
        """Turns that are not committed yet are left out."""
        now, found, missing = self._clock(), dict[UUID, str](), list[UUID]()
        for turn in turns:
            until, owner = self._owners.get(turn, (0.0, ""))
            if until < now:
                missing.append(turn)
            else:
                found[turn] = owner
        for row in await self._keys.database.rows(GET_OWNERS, turns=missing) if missing else ():
            found[row["id"]] = row["owner"]
            self._owners[row["id"]] = (now + _TURN_KEPT, row["owner"])
            self._owners.move_to_end(row["id"])
        while len(self._owners) > _MOST_TURNS:
            self._owners.popitem(last=False)
        return found

    async def _opening_key(self, owner: str) -> OwnerKey:
        try:
            key = await self._key(owner, self._keys.find)
        except CannotOpen as error:
            raise _locked(owner, error) from error
        if key is None:
            raise _locked(owner, CannotOpen(f"There is no key of {owner}: it was erased."))
        return key

    async def _sealing_key(self, owner: str) -> OwnerKey | None:
        if not owner:  # of a turn that was deleted meanwhile: nobody reads it
            return OwnerKey(new_owner_key())
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
    if isinstance(value, list):
        return any(map(_looks_sealed, value))
    return isinstance(value, bytes) and value.startswith(BYTES_MARK)


def _has_value(value: object) -> bool:
    return any(each is not None for each in value) if isinstance(value, list) else value is not None


def _size(value: object) -> int:
    if isinstance(value, list):
        return sum(BLOCK + _size(each) for each in value)
    return len(value) if isinstance(value, str | bytes) else 0


def _place(
    contents: SealedColumns, column: str, values: Mapping[str, Any], row: Mapping[str, Any], number: int = 0
) -> tuple[str, ...]:
    """The place of a value, in which alone it opens. `number` is that of the row among those of a statement."""
    names = [contents.name(name) for name in contents.key]
    parts = [row[name] if name in row else values[name] for name in names]
    parts = [part[number] if isinstance(part, list) else part for part in parts]
    return contents.table, column, *(part.hex() if isinstance(part, bytes) else str(part) for part in parts)


def _sealed(keys: Sequence[OwnerKey | None], contents: SealedColumns, values: dict[str, Any]) -> dict[str, Any]:
    """`keys` has one for all rows, or one for each. The digest comes first: it may be the key of the row."""

    def sealed(kind: str, column: str, value: Any, number: int = 0) -> Any:
        key = keys[number] if len(keys) > 1 else keys[0]
        if key is None or value is None:
            return value
        if kind == "digest":
            return sha256(key.encrypt(value, contents.table, column)).digest()
        return _sealed_value(key, kind, value, _place(contents, column, {}, values, number))

    for column, kind in sorted(contents.columns.items(), key=lambda each: each[1] != "digest"):
        name = contents.name(column)
        if isinstance(found := values.get(name), list):
            values[name] = [sealed(kind, column, value, number) for number, value in enumerate(found)]
        elif found is not None:
            values[name] = sealed(kind, column, found)
    return values


def _sealed_value(key: OwnerKey, kind: str, value: Any, place: Sequence[str]) -> str | bytes:
    if kind == "bytes":
        return BYTES_MARK + key.encrypt(value, *place)
    text = f"{TEXT_MARK}{len(value)}:{urlsafe_b64encode(key.encrypt(value.encode(), *place)).decode()}"
    if kind == "text":
        return text
    return f'{{"sealed":"{text}"{labels_of(value) if kind == "labelled" else ""}}}'


def labels_of(data: str) -> str:
    """Further members of a sealed JSON value: ids of what SQL looks for. A `source` is a reference to an upload, any
    other text in `named` just looks like one.
    """
    if not (ids := set(_ID.findall(data))):
        return ""
    sources, labels, left = set[str](), dict[str, Any](), [msgspec.json.decode(data)]
    if isinstance(left[0], dict) and "steer" in left[0]:
        labels["steer"] = left[0]["steer"]
    while left:
        each = left.pop()
        left += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        source = each.get("source") if isinstance(each, dict) else None
        if isinstance(source, dict) and source.get("type") == "upload" and source.get("id") in ids:
            sources.add(source["id"])
    labels["source"] = [{"type": "upload", "id": id} for id in sorted(sources)]
    labels["named"] = sorted(ids - sources - {labels.get("steer")})
    return "".join(f',"{name}":{msgspec.json.encode(value).decode()}' for name, value in labels.items() if value)


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
