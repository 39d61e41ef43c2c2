"""Encrypts contents for storage, and decrypts them. A value is encrypted with the key of its owner, and bound to its
table, column and row.

AES-SIV is deterministic: in the same row, a value always has the same ciphertext. So a write can be repeated, and SQL
can compare values.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from hashlib import sha256
from time import monotonic
from typing import Any, Final
from uuid import UUID

import msgspec
import structlog

from turnstream.domain.errors import CannotOpen, ClaimLost, Conflict
from turnstream.domain.identity import owner_before_move
from turnstream.extensions.encryption import NAME
from turnstream.kit.offload import BLOCK, offload
from turnstream.libraries.sealed_rows import FORMS
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import OwnerKey, new_owner_key
from turnstream.storage.contents import BYTES_MARK, JSON_MARK, SCHEDULES, TEXT_MARK, Kind, SealedColumns
from turnstream.storage.database import OWNER, Statement

log = structlog.get_logger(__name__)

KEPT: Final = 5.0  # seconds for which two results are cached: a key, and whether all replicas can decrypt
_MOST = 1000  # maximum number of keys in memory
# The forms that replicas register. Earlier versions of the extension cannot decrypt all columns, so the later columns
# are encrypted only if all live replicas have registered their form.
_, FORM, ROTATED = FORMS
_FIRST: Final = frozenset({"blocks", "documents", "open_text", "tool_cache", "uploads"})
# For each column, the members of its JSON that are encrypted. SQL reads the other members.
_MEMBERS: Final[Mapping[str, Set[str]]] = {
    "request": {"system", "output", "blocks"},
    "preliminary": {"text", "data"},
    "answer": {"text", "input", "client_data"},
    "outcome": {"text", "whole", "data", "layout"},
}
# The row of a turn contains its jobs and preliminary outputs, which the query copies from other tables. This maps each
# such column to its table, and each member to the column from which the member is copied.
_ROWS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "preliminary": ("tool_calls", {"text": "preliminary", "data": "preliminary"}),
    "jobs": ("jobs", {"progress": "progress", "outcome": "outcome"}),
}
_TURN_KEPT: Final = 60.0  # seconds for which the owner of a turn is cached
_MOST_TURNS = 10_000
_ID: Final = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}")
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")
_DECODER: Final = msgspec.json.Decoder(bytes)
_HEAD: Final = re.compile(re.escape(TEXT_MARK) + "[0-9]{1,9}:")
GET_OWNERS = Statement(
    "SELECT turns.id, owner FROM turns JOIN chats ON chats.id = chat_id WHERE turns.id = ANY(CAST(:turns AS uuid[]))"
)


class SealingCodec:
    """Encrypts and decrypts contents. Contents are encrypted only if `seals` is true and all live replicas can decrypt
    them. Otherwise, new contents are stored in plain text, or refused if encryption is required. If an owner is erased,
    the owner's key is dropped after `KEPT` seconds.
    """

    def __init__(self, keys: OwnerKeys, *, seals: bool, clock: Callable[[], float] = monotonic) -> None:
        self._keys = keys
        self.seals = seals
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, OwnerKey | None]] = OrderedDict()
        self._owners: OrderedDict[UUID, tuple[float, str]] = OrderedDict()  # owners of turns, with their expiry
        self.forms: Sequence[str] = (FORM, ROTATED)
        self._unable: dict[tuple[bytes, str], tuple[float | None, str | None]] = {}  # a replica, by master key and form

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
        form = NAME if contents.table in _FIRST else ROTATED if contents is SCHEDULES else FORM
        found_keys = {owner: await self._sealing_key(owner, form) for owner in dict.fromkeys(owners)}
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
            if found := {name: column for name, column in names if _is_sealed(contents.columns[column], row.get(name))}:
                sealed[number] = found
        if not sealed:
            return rows
        owners = await self._owners_of(contents, values, [rows[number] for number in sealed])
        size = sum(BLOCK + sum(_size(rows[number][name]) for name in found) for number, found in sealed.items())

        def opened(keys: Mapping[str, OwnerKey]) -> Sequence[Mapping[str, Any]]:
            given = list(rows)
            for (number, found), owner in zip(sealed.items(), owners, strict=True):
                try:
                    given[number] = _opened(keys[owner], contents, found, values, rows[number])
                except CannotOpen as error:
                    raise _locked(owner, error) from error
            return given

        try:
            return await offload(size, opened, await self._opening_keys(owners))
        except Conflict:  # another replica may have given the owner a new key meanwhile
            for owner in owners:
                self._known.pop(owner_before_move(owner), None)
            return await offload(size, opened, await self._opening_keys(owners))

    async def _owners_of(
        self, contents: SealedColumns, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
    ) -> Sequence[str]:
        """Returns the owner of each row: the owner that the statement or the row names, or else the owner of the row's
        turn.
        """
        if owner := values.get("owner"):
            return [owner] * len(rows)
        turn = contents.name(contents.key[0])
        turns = [row.get(turn) or values.get(turn) for row in rows if not row.get("owner")]
        of_turns = await self._owners_of_turns({each for each in turns if isinstance(each, UUID)}) if turns else {}
        return [row.get("owner") or of_turns.get(row.get(turn) or values.get(turn), OWNER.get()) for row in rows]

    async def _owners_of_turns(self, turns: Set[UUID]) -> Mapping[Any, str]:
        """Returns the owners of the turns. Turns that are not yet committed are left out."""
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

    async def _opening_keys(self, owners: Sequence[str]) -> Mapping[str, OwnerKey]:
        return {owner: await self._opening_key(owner) for owner in dict.fromkeys(owners)}

    async def _opening_key(self, owner: str) -> OwnerKey:
        try:
            key = await self._key(owner, self._keys.find)
        except CannotOpen as error:
            raise _locked(owner, error) from error
        if key is None:
            raise _locked(owner, CannotOpen(f"There is no key of {owner}: it was erased."))
        return key

    async def _sealing_key(self, owner: str, form: str) -> OwnerKey | None:
        if not owner:  # the turn was deleted meanwhile, so nobody reads the contents
            return OwnerKey(new_owner_key())
        try:
            key = await self._key(owner, self._keys.find_or_create)
        except CannotOpen as error:
            raise _locked(owner, error) from error
        assert key is not None
        until, replica = self._unable.get((key.master, form), (None, None))
        if until is None or until < self._clock():
            before, replica = replica, await self._keys.replica_without_key(key.master, form)
            self._unable[key.master, form] = (self._clock() + KEPT, replica)
            if replica is not None and replica != before:
                log.warning("contents.plain", replica=replica, form=form, refused=self._keys.required)
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
        return value.startswith((TEXT_MARK, JSON_MARK)) or (value[:1] in "{[" and f'"{TEXT_MARK}' in value)
    if isinstance(value, list):
        return any(map(_looks_sealed, value))
    return isinstance(value, bytes) and value.startswith(BYTES_MARK)


def _is_sealed(kind: Kind, value: object) -> bool:
    if not isinstance(value, str):
        return _looks_sealed(value)
    match kind:
        case "members" | "rows":
            return f'"{TEXT_MARK}' in value or value.startswith(TEXT_MARK)
        case "json" | "labelled":
            return value.startswith(JSON_MARK)
        case _:
            return value.startswith(TEXT_MARK)


def has_form(contents: SealedColumns, row: Mapping[str, Any], *, sealed: bool) -> bool:
    """Whether the row has an encrypted value (if `sealed` is true), or a plain value that encryption would change (if
    it is false).
    """
    forms = set[bool]()

    def note(kind: Kind, value: str) -> str:
        forms.add(_is_sealed(kind, value))
        return value

    for column, kind in contents.columns.items():
        if (value := row[column]) is None:
            continue
        if kind == "members":
            _with_members(value, _MEMBERS[column], note)
        else:
            note(kind, value)
    return sealed in forms


def _has_value(value: object) -> bool:
    return any(each is not None for each in value) if isinstance(value, list) else value is not None


def _size(value: object) -> int:
    if isinstance(value, list):
        return sum(BLOCK + _size(each) for each in value)
    return len(value) if isinstance(value, str | bytes) else 0


def _place(
    contents: SealedColumns, column: str, values: Mapping[str, Any], row: Mapping[str, Any], number: int = 0
) -> tuple[str, ...]:
    """Returns the place to which a value is bound: without this place, the value cannot be decrypted. `number` is the
    number of the row in the statement.
    """
    names = [contents.name(name) for name in contents.key]
    parts = [row[name] if name in row else values[name] for name in names]
    parts = [part[number] if isinstance(part, list) else part for part in parts]
    return contents.table, column, *(part.hex() if isinstance(part, bytes) else str(part) for part in parts)


def _sealed(keys: Sequence[OwnerKey | None], contents: SealedColumns, values: dict[str, Any]) -> dict[str, Any]:
    """Encrypts the values of a statement. `keys` has one key for all rows, or one key for each row. The digest is
    encrypted first, because it may be the primary key of the row, to which the other values are bound.
    """

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
    if kind == "members":
        return _with_members(value, _MEMBERS[place[1]], lambda kind, found: _sealed_value(key, kind, found, place))
    text = f"{TEXT_MARK}{len(value)}:{_as_text(key.encrypt(value.encode(), *place))}"
    if kind == "text":
        return text
    return f'{{"sealed":"{text}"{labels_of(value) if kind == "labelled" else ""}}}'


def labels_of(data: str) -> str:
    """Returns the unencrypted members that are stored beside the ciphertext of a JSON value: the ids that SQL queries
    search for. `source` lists references to uploads, and `named` lists all other texts that have the form of an id.
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
        place, value = _place(contents, column, values, row), row[name]
        match contents.columns[column]:
            case "rows":
                opened[name] = _opened_rows(key, value, column, place[2:])
            case "members" if not value.startswith(TEXT_MARK):
                opened[name] = _opened_members(key, value, place)
            case _:
                opened[name] = _opened_value(key, value, place)
    return opened


def _opened_members(key: OwnerKey, value: str, place: Sequence[str]) -> str:
    def opened(kind: Kind, found: str) -> str | bytes:
        return _opened_value(key, found, place) if _is_sealed(kind, found) else found

    return _with_members(value, _MEMBERS[place[1]], opened)


def _opened_rows(key: OwnerKey, value: str, column: str, turn: Sequence[str]) -> str:
    table, columns = _ROWS[column]
    rows = msgspec.json.decode(value, type=list[dict[str, msgspec.Raw]])
    for row in rows:
        for name, source in columns.items():
            given, place = bytes(row[name]).decode(), (table, source, *turn)
            if f"{TEXT_MARK}" not in given:
                continue
            found = msgspec.json.decode(given)
            if isinstance(found, str) and found.startswith(TEXT_MARK):
                row[name] = msgspec.Raw(msgspec.json.encode(_opened_value(key, found, place)))
            elif isinstance(found, str):
                row[name] = msgspec.Raw(msgspec.json.encode(_opened_members(key, found, place)))
            elif _is_sealed("json", given):
                row[name] = msgspec.Raw(_opened_value(key, given, place))
    return msgspec.json.encode(rows).decode()


def _with_members(value: str, names: Set[str], change: Callable[[Kind, str], str | bytes]) -> str:
    """Returns the object after applying `change` to the texts and JSON values of the members `names`, and to the same
    members of its member `outcome`.
    """
    members = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    for name, raw in members.items():
        given = bytes(raw).decode()
        if name == "outcome":
            members[name] = msgspec.Raw(_with_members(given, names, change).encode())
        elif name in names and given not in {"null", '""'}:
            if given.startswith('"'):
                members[name] = msgspec.Raw(msgspec.json.encode(change("text", msgspec.json.decode(given))))
            else:
                changed = change("json", given)
                members[name] = msgspec.Raw(changed.encode() if isinstance(changed, str) else changed)
    return msgspec.json.encode(members).decode()


def _opened_value(key: OwnerKey, value: str | bytes, place: Sequence[str]) -> str | bytes:
    if isinstance(value, bytes):
        return key.decrypt(value.removeprefix(BYTES_MARK), *place)
    text = value[len('{"sealed":"') : value.index('"', len(JSON_MARK))] if value.startswith(JSON_MARK) else value
    head = _HEAD.match(text)
    try:
        return key.decrypt(_as_bytes(text[head.end() if head else 0 :]), *place).decode()
    except (ValueError, msgspec.MsgspecError):
        raise CannotOpen("A stored text was changed, or belongs to another owner or place.") from None


# URL-safe base64. The module `base64` takes three times as long, and a catch-up spends most of its time in this
# conversion.


def _as_text(value: bytes) -> str:
    return msgspec.json.encode(value)[1:-1].translate(_TO_URL).decode()


def _as_bytes(text: str) -> bytes:
    """Decodes URL-safe base64. Raises MsgspecError and UnicodeEncodeError."""
    return _DECODER.decode(b'"%s"' % text.encode("ascii").translate(_FROM_URL))
