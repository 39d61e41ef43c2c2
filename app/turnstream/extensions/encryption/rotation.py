"""Gives owners new keys, and encrypts their rows again, owner by owner, while servers run.

The previous key stays in the row of the new key, encrypted with the new key, until no row needs the previous key. So if
a rotation is interrupted at any moment, the next rotation completes it.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any, Final, Literal

from turnstream.domain.errors import CannotOpen, Conflict
from turnstream.extensions.encryption.codec import ROTATED, SealingCodec
from turnstream.extensions.encryption.old_contents import OLD, SEALED_BLOCKS, OldContents, change_row, of_texts
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import EARLIER, OwnerKey, is_sealed, new_owner_key
from turnstream.libraries.tool_secrets import SECRET_COLUMNS, with_secrets
from turnstream.storage.contents import BLOCKS, OPEN_TEXT
from turnstream.storage.database import LONG, Database, Row, Statement
from turnstream.storage.retention import NO_ID
from turnstream.storage.rows import from_json, to_json

# Seconds after which no replica encrypts with the previous key: a replica that was frozen for this time has lost its
# lease.
WRITERS: Final = 300.0
# Seconds after which no reader has old rows: running statements have ended, and a standby has caught up with the
# primary.
READERS: Final = 60.0
_STEP: Final = 50  # rows
_TRIES: Final = 20  # maximum number of tries to change a row that other writes change at the same time
_LOOK: Final = 0.2  # seconds between two checks of transactions

# Selects the keys to replace. An owner who is moving, or who has moved away and left rows here, keeps the key.
_HERE: Final = """earlier IS NULL AND created_at <= now() - CAST(:age AS float) * interval '1 second'
    AND (CAST(:owner AS text) IS NULL OR owner = :owner) AND NOT EXISTS (
        SELECT FROM moves WHERE state <> 'arrived'
            AND (moves.owner = owner_keys.owner OR starts_with(moves.owner, owner_keys.owner || ' (moved to '))
    )"""
COUNT_OLD_KEYS = Statement(f"SELECT count(*) AS number FROM owner_keys WHERE {_HERE}", timeout=LONG)
GET_OLD_KEYS = Statement(
    f"SELECT owner, wrapped FROM owner_keys WHERE owner > :behind AND {_HERE} ORDER BY owner LIMIT :most", timeout=LONG
)
REPLACE_KEY = Statement(
    """
    UPDATE owner_keys
    SET master = :master, wrapped = :wrapped, earlier = :earlier, created_at = now(), resealed_at = NULL
    WHERE owner = :owner AND wrapped = :before AND earlier IS NULL RETURNING owner
    """
)
GET_REPLACED = Statement(
    """
    SELECT owner, earlier FROM owner_keys
    WHERE earlier IS NOT NULL AND resealed_at IS NULL AND owner > :behind ORDER BY owner LIMIT :most
    """,
    timeout=LONG,
)
# Returns how many seconds the newest key still waits, and the number of keys that wait.
GET_WAIT = Statement(
    """
    SELECT count(*) AS number, coalesce(max(extract(epoch FROM
        CASE WHEN resealed_at IS NULL THEN created_at + CAST(:writers AS float) * interval '1 second'
            ELSE resealed_at + CAST(:readers AS float) * interval '1 second' END - now())), 0)::float AS seconds
    FROM owner_keys WHERE earlier IS NOT NULL AND (resealed_at IS NULL) = CAST(:open AS boolean)
    """,
    timeout=LONG,
)
COUNT_EARLIER = Statement("SELECT count(*) AS number FROM owner_keys WHERE earlier IS NOT NULL", timeout=LONG)
NOTE_RESEALED = Statement(
    "UPDATE owner_keys SET resealed_at = now() WHERE owner = :owner AND earlier = :earlier RETURNING owner"
)
# Returns owners whose previous key may be destroyed. This excludes owners of running turns that have read the secrets
# of their requests before these secrets were encrypted again.
GET_READY = Statement(
    """
    SELECT owner, created_at, earlier FROM owner_keys
    WHERE resealed_at <= now() - CAST(:readers AS float) * interval '1 second' AND owner > :behind AND NOT EXISTS (
        SELECT FROM turns WHERE status = 'running' AND queue_owner = owner_keys.owner AND started_at <= resealed_at
            AND (tool_set IS NOT NULL OR strpos(request::text, 'turnstream-sealed') > 0)
    )
    ORDER BY owner LIMIT :most
    """,
    timeout=LONG,
)
DESTROY_EARLIER = Statement(
    """
    UPDATE owner_keys SET earlier = NULL, resealed_at = NULL WHERE owner = :owner AND earlier = :earlier RETURNING owner
    """
)
# An older transaction may have written rows with the previous key and may commit them later, so the rotation waits for
# all older transactions.
MARK_TRANSACTIONS = Statement("SELECT pg_current_xact_id()::text AS mark")
GET_EARLIER_TRANSACTION = Statement(
    "SELECT 1 AS found WHERE pg_snapshot_xmin(pg_current_snapshot()) <= CAST(CAST(:mark AS text) AS xid8)"
)
GET_TURNS_SINCE = Statement(
    """
    SELECT turns.id FROM turns JOIN chats ON chats.id = chat_id
    WHERE owner = :owner AND turns.created_at >= :since AND request IS NOT NULL
    """,
    timeout=LONG,
)
GET_TURNS = Statement("SELECT id FROM turns WHERE chat_id = ANY(CAST(:chats AS uuid[])) ORDER BY id", timeout=LONG)
FORGET_CACHE = Statement("DELETE FROM tool_cache WHERE owner = :owner", timeout=LONG)
GET_TOKENS_OF_OWNER = Statement(
    """
    SELECT server, tokens, CASE WHEN pending_until > now() THEN pending END AS pending
    FROM sign_ins WHERE owner = :owner ORDER BY server
    """
)
PUT_TOKENS: Final = {
    name: Statement(
        f"UPDATE sign_ins SET {name} = :after WHERE owner = :owner AND server = :server AND {name} = :before"
        " RETURNING server"
    )
    for name in ("tokens", "pending")
}


def _by_owner(old: OldContents) -> Statement:
    key, place = ", ".join(old.begin), ", ".join(f":{name}" for name in old.begin)
    return Statement(
        f"SELECT {key} FROM {old.columns.table} WHERE owner = :owner AND ({key}) > ({place})"
        f" ORDER BY {key} LIMIT :most",
        timeout=LONG,
    )


def _by_turn(old: OldContents) -> Statement:
    turn = "turn_id" if old.columns.table != "turns" else "id"
    return Statement(
        f"SELECT {', '.join(old.begin)} FROM {old.columns.table} WHERE {turn} = ANY(CAST(:turns AS uuid[]))",
        timeout=LONG,
    )


_CONTENTS: Final = (
    *(SEALED_BLOCKS if old.columns is BLOCKS else old for old in OLD),
    of_texts(OPEN_TEXT, {"turn_id": NO_ID, "attempt": -1, "index": -1, "start": -1}),
)
_OF_OWNERS: Final = {"uploads", "documents", "chats", "schedules"}
OF_OWNERS: Final = tuple((old, _by_owner(old)) for old in _CONTENTS if old.columns.table in _OF_OWNERS)
OF_TURNS: Final = tuple((old, _by_turn(old)) for old in _CONTENTS if old.columns.table not in _OF_OWNERS)


@dataclass(frozen=True, slots=True)
class _SecretColumn:
    """A column with secrets. `read` finds the secrets of an owner, or of turns. `write` changes only secrets that have
    not changed since they were read.
    """

    table: str
    key: Sequence[str]
    read: Statement
    write: Statement


def _secret_column(table: str, column: str, key: Sequence[str]) -> _SecretColumn:
    names, scope = ", ".join(key), "id = ANY(CAST(:turns AS uuid[]))" if table == "turns" else "owner = :owner"
    here = " AND ".join(f"{name} = :{name}" for name in key)
    found = f"strpos({column}::text, 'turnstream-sealed') > 0"
    read = f"SELECT {names}, {column}::text AS found FROM {table} WHERE {scope} AND {found}"
    write = f"""
        UPDATE {table} SET {column} = CAST(:after AS json) WHERE {here} AND {column}::text = :before RETURNING 1 AS done
    """
    return _SecretColumn(table, key, Statement(read, timeout=LONG), Statement(write))


SECRETS: Final = tuple(_secret_column(*place, key) for place, key in SECRET_COLUMNS.items())


@dataclass(frozen=True, slots=True)
class KeyStep:
    """A step of a rotation, by its `kind`. `replaced`: `number` owners have a new key. `waits`: the rotation waits for
    `number` seconds. `resealed`: `rows` of one owner were encrypted again, and `number` owners need this step.
    `destroyed`: `number` previous keys were destroyed. `failed` describes the values that cannot be decrypted.
    """

    kind: Literal["replaced", "waits", "resealed", "destroyed"]
    number: int = 0
    owner: str = ""
    rows: int = 0
    failed: Sequence[str] = ()


class KeyRotation:
    """Gives a new key to every owner whose key is older than `age` seconds, or to one `owner`. `addresses` are the URLs
    of servers at which owners sign in. All replicas must be able to decrypt with the previous key (`replica_without`).
    """

    def __init__(
        self, database: Database, keys: OwnerKeys, addresses: Collection[str], *, age: float, owner: str | None = None
    ) -> None:
        self._database = database
        self._keys = keys
        self._addresses = addresses
        self._chosen = {"age": age, "owner": owner}

    async def replica_without(self) -> str | None:
        """Returns the address of a live replica that cannot decrypt with a previous key."""
        return await self._keys.replica_without_key(None, ROTATED)

    async def count(self) -> int:
        """Returns the number of keys that must be replaced."""
        row = await self._database.row(COUNT_OLD_KEYS, **self._chosen)
        return 0 if row is None else row["number"]

    async def kept(self) -> int:
        """Returns the number of previous keys that still exist."""
        row = await self._database.row(COUNT_EARLIER)
        return 0 if row is None else row["number"]

    async def run(self) -> AsyncGenerator[KeyStep, None]:
        """Runs a rotation, and completes rotations that were interrupted."""
        async for step in self._replace():
            yield step
        waits = {"writers": WRITERS, "readers": READERS}
        async for step in self._wait(waits, open=True):
            yield step
        left, behind = await self._database.row(GET_WAIT, open=True, **waits), ""
        while rows := await self._database.rows(GET_REPLACED, behind=behind, most=_STEP):
            behind = rows[-1]["owner"]
            for row in rows:
                yield await self._reseal(row["owner"], row["earlier"], left["number"] if left else 0)
        async for step in self._wait(waits, open=False):
            yield step
        end, failed = monotonic() + WRITERS, False
        while not failed:
            async for step in self._destroy():
                failed |= bool(step.failed)
                yield step
            left = await self._database.row(GET_WAIT, open=False, **waits)
            if left is None or left["number"] == 0 or monotonic() >= end:
                return
            await asyncio.sleep(_LOOK)  # meanwhile, running turns may end

    async def _destroy(self) -> AsyncGenerator[KeyStep, None]:
        behind = ""
        while rows := await self._database.rows(GET_READY, behind=behind, readers=READERS, most=_STEP):
            behind, done, failed = rows[-1]["owner"], 0, list[str]()
            for row in rows:
                resealing = _Resealing(self._database, self._keys, row["owner"], self._addresses)
                await resealing.again(row["created_at"])
                if failures := resealing.failed:
                    failed += failures
                else:
                    found = {"owner": row["owner"], "earlier": row["earlier"]}
                    done += len(await self._database.rows(DESTROY_EARLIER, **found))
            yield KeyStep("destroyed", done, failed=failed)

    async def _replace(self) -> AsyncGenerator[KeyStep, None]:
        behind, masters = "", self._keys.masters
        while rows := await self._database.rows(GET_OLD_KEYS, behind=behind, most=_STEP, **self._chosen):
            behind, done, failed = rows[-1]["owner"], 0, list[str]()
            for row in rows:
                owner, key = row["owner"], new_owner_key()
                try:
                    before = await masters.unwrap(owner, row["wrapped"])
                except CannotOpen as error:
                    failed.append(str(error))
                    continue
                values = {"wrapped": await masters.wrap(owner, key), "earlier": OwnerKey(key).encrypt(before, EARLIER)}
                found = {"owner": owner, "before": row["wrapped"], "master": masters.first}
                done += len(await self._database.rows(REPLACE_KEY, **values, **found))
            yield KeyStep("replaced", done, failed=failed)

    async def _wait(self, waits: Mapping[str, float], *, open: bool) -> AsyncGenerator[KeyStep, None]:
        """Waits until no replica writes with the previous keys (if `open` is true), or until no replica needs rows that
        were written with these keys.
        """
        row = await self._database.row(GET_WAIT, open=open, **waits)
        if row is None or row["number"] == 0:
            return
        if row["seconds"] > 0:
            yield KeyStep("waits", round(row["seconds"]))
            await asyncio.sleep(row["seconds"])
        if open and (now := await self._database.row(MARK_TRANSACTIONS)):
            while await self._database.row(GET_EARLIER_TRANSACTION, mark=now["mark"]):  # noqa: ASYNC110, rows have no event
                await asyncio.sleep(_LOOK)

    async def _reseal(self, owner: str, earlier: bytes, number: int) -> KeyStep:
        resealing = _Resealing(self._database, self._keys, owner, self._addresses)
        try:
            await resealing.run()
        except (CannotOpen, Conflict) as error:
            resealing.failed.append(str(error))
        if not resealing.failed:
            await self._database.rows(NOTE_RESEALED, owner=owner, earlier=earlier)
        return KeyStep("resealed", number, owner, resealing.rows, resealing.failed)


class _Resealing:
    """Encrypts all rows of one owner again."""

    def __init__(self, database: Database, keys: OwnerKeys, owner: str, addresses: Collection[str]) -> None:
        self._database = database
        self._keys = keys
        self._owner = owner
        self._addresses = addresses
        # `required` is set, because otherwise a row would be stored in plain text if a replica could not decrypt it.
        self._codec = SealingCodec(OwnerKeys(keys.database, keys.masters, required=True), seals=True)
        self.rows = 0
        self.failed = list[str]()

    async def run(self) -> None:
        """Encrypts the rows again. Raises CannotOpen and Conflict."""
        if (key := await self._keys.find(self._owner)) is None:
            return  # the owner was erased meanwhile
        await self._database.rows(FORGET_CACHE, owner=self._owner)
        await self._sign_ins(key)
        await self._secrets_of_owner(key)
        for old, list_rows in OF_OWNERS:
            place = {**old.begin, "owner": self._owner}
            while rows := await self._database.rows(list_rows, most=_STEP, **place):
                place.update(rows[-1])
                for row in rows:
                    await self._contents(old, row)
                if old.columns.table == "chats":
                    await self._chats(key, [row["id"] for row in rows])

    async def again(self, since: datetime) -> None:
        """Encrypts secrets again that requests may have copied in their previous encryption: secrets of the owner, and
        of turns created since `since`.
        """
        if (key := await self._keys.find(self._owner)) is None:
            return
        await self._secrets_of_owner(key)
        turns = await self._database.rows(GET_TURNS_SINCE, owner=self._owner, since=since)
        await self._secrets_of_turns(key, [row["id"] for row in turns])

    async def _secrets_of_owner(self, key: OwnerKey) -> None:
        for column in SECRETS:
            if column.table != "turns":
                await self._secrets(key, column, owner=self._owner)

    async def _secrets_of_turns(self, key: OwnerKey, turns: Sequence[Any]) -> None:
        for column in SECRETS:
            if column.table == "turns":
                await self._secrets(key, column, turns=turns)

    async def _chats(self, key: OwnerKey, chats: Sequence[Any]) -> None:
        turns = [row["id"] for row in await self._database.rows(GET_TURNS, chats=chats)]
        for start in range(0, len(turns), _STEP):
            portion = turns[start : start + _STEP]
            for old, list_rows in OF_TURNS:
                for row in await self._database.rows(list_rows, turns=portion):
                    await self._contents(old, row)
            await self._secrets_of_turns(key, portion)

    async def _contents(self, old: OldContents, row: Row) -> None:
        here = {name: row[name] for name in old.begin}
        for _ in range(_TRIES):
            changed = await change_row(self._database, self._codec, old, here, sealed_alone=True)
            if changed is not False:
                self.rows += changed is True
                return
        self.failed.append(f"A row of {old.columns.table} changes all the time: {here}.")

    async def _secrets(self, key: OwnerKey, column: _SecretColumn, **scope: Any) -> None:
        async def resealed(server: str, values: Mapping[str, str]) -> Mapping[str, str]:
            changed = dict(values)
            for name, value in values.items():
                if is_sealed(value):
                    try:
                        changed[name] = key.seal(key.open(value, server, name), server, name)
                    except CannotOpen as error:
                        self.failed.append(f"{name} of a tool at {server} in {column.table}: {error}")
            return changed

        for _ in range(_TRIES):
            missed = 0
            for row in await self._database.rows(column.read, **scope):
                document = from_json(row["found"])
                if (changed := await with_secrets(document, resealed)) == document:
                    continue
                here = {name: row[name] for name in column.key}
                values = {**here, "before": row["found"], "after": to_json(changed)}
                done = bool(await self._database.rows(column.write, **values))
                self.rows += done
                missed += not done
            if not missed:
                return
        self.failed.append(f"Rows of {column.table} with secrets change all the time.")

    async def _sign_ins(self, key: OwnerKey) -> None:
        """Encrypts the tokens of sign-ins again. A token is bound to the address of a server in the tools file."""
        for row in await self._database.rows(GET_TOKENS_OF_OWNER, owner=self._owner):
            server = row["server"]
            places = [("own_server", server), ("subject_token",)]
            places += [("sign_in", server, address) for address in self._addresses]
            for name, write in PUT_TOKENS.items():
                if (before := row[name]) is None:
                    continue
                found = [place for place in places if _opens(key, before, place)]
                if not found:
                    self.failed.append(
                        f"The sign-in of {self._owner} at {server} was made for an address that the tools file does not"
                        " name: sign in again, or sign out."
                    )
                    continue
                after = key.seal(key.open(before, *found[0]), *found[0])
                if after != before:
                    values = {"owner": self._owner, "server": server, "before": before, "after": after}
                    self.rows += len(await self._database.rows(write, **values))


def _opens(key: OwnerKey, sealed: str, place: Sequence[str]) -> bool:
    try:
        key.open(sealed, *place)
    except CannotOpen:
        return False
    return True
