"""Moves an owner between cells: copies all rows of the owner from one Postgres to another.

Rows that no longer change are copied ahead (owner_ahead.py). Then the owner is held: the API refuses changes, running
turns return to the queue, and no replica claims them. Then the remaining rows are copied, in one transaction in each
database.

The transaction of the old cell commits first. It gives the rows to a departed owner, so that no request finds them. If
the transaction of the new cell then fails, no row is lost: the move is repeated with the rows of the departed owner.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final

from turnstream.domain.errors import CannotOpen, ConfigError, NotFound, StorageUnavailable
from turnstream.domain.identity import arriving_name, departed_name
from turnstream.extensions.cells.copying import copy_rows
from turnstream.extensions.cells.moves import LOOK
from turnstream.extensions.cells.owner_ahead import AHEAD, OwnerAhead, stored_columns
from turnstream.libraries.sealed_rows import FORMS, HAS_SEALED_ROWS, REWRAP
from turnstream.libraries.secrets.owner_keys import GET_REPLICA_WITHOUT_KEY
from turnstream.libraries.secrets.sealing import MasterKeys
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.database import Database, Statement, Transaction
from turnstream.storage.migrations import RELATIONS, VERSION_TABLES, newest_revision, version_table
from turnstream.storage.ownership import Nature, Ownership, Path
from turnstream.storage.runs.queue import NOTIFY, QUEUED

TARGET_MASTER_KEY: Final = "TARGET_MASTER_KEY"

# Most seconds for running turns to return to the queue, and for each statement that copies rows. If a move does not
# finish in this time, the owner is served again.
_SETTLE = 30.0
_COPY = 1800.0
_PAUSE = 0.1

_MOVED: Final[Collection[Nature]] = {"content", "state", "credential"}
# Columns that get a new value when a row is copied. The webhooks of a departed owner are never due (`infinity`), so
# they are not sent; a repeated move makes them due again.
_CHANGED: Final[Mapping[str, str]] = {
    "owner": "CAST(:name AS text)",
    "due_at": "CASE WHEN due_at = 'infinity' THEN now() ELSE due_at END",
    "resealed_at": "NULL::timestamptz",
}
_ROWS: Final[Mapping[Path, str]] = {
    "owner": "owner = :owner",
    "chat_id": "chat_id IN (SELECT id FROM chats WHERE owner = :owner)",
    "turn_id": "turn_id IN (SELECT turns.id FROM turns JOIN chats ON chats.id = chat_id WHERE owner = :owner)",
}

GET_RELATIONS = Statement(RELATIONS)
GET_REVISION: Final = {table: Statement(f"SELECT version_num FROM {table}") for table in VERSION_TABLES}
GET_MOVE = Statement("SELECT cell, state FROM moves WHERE owner = :owner")
GET_KEY = Statement("SELECT wrapped, created_at, earlier FROM owner_keys WHERE owner = :owner")
# Records the encryption key with which rows were copied ahead.
MARK_KEY = Statement(
    """
    INSERT INTO owner_keys (owner, master, wrapped, created_at) VALUES (:owner, :master, :wrapped, :created_at)
    ON CONFLICT (owner) DO UPDATE
    SET master = EXCLUDED.master, wrapped = EXCLUDED.wrapped, created_at = EXCLUDED.created_at RETURNING owner
    """
)
DELETE_KEY_MARK = Statement("DELETE FROM owner_keys WHERE owner = :owner RETURNING owner")
GET_TOKEN_NAMES = Statement("SELECT name FROM tokens WHERE owner = :owner")
GET_TAKEN_NAME = Statement(
    "SELECT name FROM tokens WHERE name = ANY(CAST(:names AS text[])) AND owner <> :owner ORDER BY name LIMIT 1"
)
GET_COLUMNS = Statement(
    """
    SELECT table_name || '.' || column_name || ' ' || data_type AS name FROM information_schema.columns
    WHERE table_schema = current_schema() AND table_name = ANY(CAST(:tables AS text[])) ORDER BY 1
    """
)
# Finds a replica of an earlier version. It would run a turn without tools, because it does not read tool sets
# (`keep_tool_set`).
GET_REPLICA_WITHOUT_TOOL_SETS = Statement(
    "SELECT address FROM replicas WHERE NOT reads_tool_sets AND lease_until > now() - interval '5 minutes' LIMIT 1"
)
HOLD = Statement(
    """
    INSERT INTO moves (owner, cell, state, held_until)
    VALUES (:owner, :cell, 'leaving', now() + CAST(:seconds AS float) * interval '1 second')
    ON CONFLICT (owner) DO UPDATE
    SET cell = EXCLUDED.cell, state = EXCLUDED.state, held_until = EXCLUDED.held_until, changed_at = now()
    RETURNING owner
    """
)
# The lock is granted when all transactions that write one of these tables have ended. Later writes are refused by a
# trigger (`refuse_owner_who_moves`) or by the API.
AWAIT_WRITERS = Statement("LOCK TABLE chats, uploads, documents IN SHARE MODE")
SHORT_WAIT = Statement("SELECT set_config('lock_timeout', '2s', true)")
LET_GO = Statement("DELETE FROM moves WHERE owner = :owner AND state = 'leaving' RETURNING owner")
RUNNING = Statement(
    "SELECT turns.id FROM turns JOIN chats ON chats.id = chat_id WHERE owner = :owner AND turns.status = 'running'"
)
LOCK_MOVE = Statement("SELECT FROM moves WHERE owner = :owner AND held_until > clock_timestamp() FOR UPDATE")
LOCK_CHATS = Statement("SELECT id FROM chats WHERE owner = :owner FOR UPDATE", timeout=_COPY)
# Exchanges that wait for the lock of a chat compare its `updated_at`, so this time must change. A microsecond is
# enough, and every later change has a later time.
DEPART_CHATS = Statement(
    "UPDATE chats SET owner = :departed, updated_at = updated_at + interval '1 microsecond' WHERE owner = :owner",
    timeout=_COPY,
)
HOLD_BACK_WEBHOOKS = tuple(
    Statement(f"UPDATE {table} SET due_at = 'infinity' WHERE due_at IS NOT NULL AND {_ROWS['turn_id']}", timeout=_COPY)
    for table in ("webhooks", "waiting_webhooks")
)
# Holds the departed owner forever, so that no replica claims the turns of this owner.
HOLD_DEPARTED = Statement(
    "INSERT INTO moves (owner, cell, state, held_until) VALUES (:departed, :cell, 'leaving', 'infinity')"
)
MARK = Statement(
    """
    INSERT INTO moves (owner, cell, state) VALUES (:owner, :cell, :state)
    ON CONFLICT (owner) DO UPDATE SET cell = :cell, state = :state, held_until = NULL, changed_at = now()
    """
)
NEED_TOKENS = Statement(
    "INSERT INTO token_requirement SELECT FROM tokens WHERE owner = :owner LIMIT 1 ON CONFLICT DO NOTHING"
)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table that is moved. `copied` reads the rows of :owner, with :name as their owner. `count` counts the rows:
    credentials by :name, and all other rows by :owner.
    """

    name: str
    ownership: Ownership
    columns: Sequence[str]
    copied: Statement
    count: Statement


def _moved_tables() -> Iterator[_Table]:
    """Yields the tables in the order of the copy: a table comes after the tables that its rows refer to."""
    for table in ALL_TABLES.values():
        ownership, columns = table.ownership, stored_columns(table.name)
        if ownership.path is not None and ownership.nature in _MOVED:
            # The credentials in the old cell keep their owner, so that requests with them are redirected.
            condition = "owner = :name" if ownership.nature == "credential" else _ROWS[ownership.path]
            values = ", ".join(_CHANGED.get(name, f'"{name}"') for name in columns)
            rows = f"FROM {table.name} WHERE {condition}"
            yield _Table(
                table.name,
                ownership,
                columns,
                Statement(f"SELECT {values} {rows}", timeout=_COPY),
                Statement(f"SELECT count(*) AS number {rows}", timeout=_COPY),
            )


MOVED: Final = tuple(_moved_tables())
DEPART: Final = {
    table.name: Statement(f"UPDATE {table.name} SET owner = :departed WHERE owner = :owner", timeout=_COPY)
    for table in MOVED
    if table.ownership.path == "owner" and table.ownership.nature != "credential" and table.name != "chats"
}
ANY_ROW = Statement(
    "SELECT "
    + " OR ".join(
        f"EXISTS (SELECT FROM {table.name} WHERE owner = :owner)" for table in MOVED if table.ownership.path == "owner"
    )
    + " AS found"
)


async def _revision(database: Database) -> str | None:
    present = {row["relname"] for row in await database.rows(GET_RELATIONS)}
    table = version_table(present)
    row = await database.row(GET_REVISION[table]) if table in present else None
    return None if row is None else row["version_num"]


class OwnerMove:
    """Moves `owner` from the cell `here` to the cell `there`. `step` is called before each step, with the name of the
    step. `masters` are the master keys of the two cells.
    """

    def __init__(
        self,
        owner: str,
        here: tuple[str, Database],
        there: tuple[str, Database],
        step: Callable[[str], None] = lambda _name: None,
        masters: tuple[MasterKeys | None, MasterKeys | None] = (None, None),
    ) -> None:
        self._owner = owner
        self._masters = masters
        self._here, self._source = here
        self._there, self._target = there
        self._step = step
        self._departed = departed_name(owner, self._there)
        self._ahead = OwnerAhead(owner, step)

    async def run(self) -> None:
        """Moves the owner. If a call is interrupted at any moment, the next call repeats or completes the move. Raises
        NotFound and ConfigError if the move is refused, and StorageError if Postgres fails.
        """
        await self._check_versions()
        before = await self._source.row(GET_MOVE, owner=self._owner)
        gone = before is not None and before["state"] == "gone"
        await self._check(before["cell"] if before is not None and gone else None)
        if gone:
            async with self._target.transaction() as target, self._source.transaction() as source:
                await self._copy(source, target, self._departed)
        else:
            await self._mark_key()
            await self._ahead.copy_ahead(self._source, self._target)
            await self._check_versions()  # checked again, because the copy may have taken hours
            await self._check(None)
            try:
                self._step("hold")
                await self._hold()
                self._step("settle")
                await self._settle()
                await self._switch()
            except Exception:
                with suppress(StorageUnavailable):
                    await self._source.row(LET_GO, owner=self._owner)
                raise
        self._step("wake")
        await self._target.row(NOTIFY, payload=QUEUED)

    async def counts(self) -> Mapping[str, int]:
        """Returns the number of the owner's rows in each table of the new cell. The duration grows with the number of
        rows.
        """
        counts = {}
        for table in MOVED:
            (row,) = await self._target.rows(table.count, owner=self._owner, name=self._owner)
            counts[table.name] = row["number"]
        return counts

    async def _check_versions(self) -> None:
        """Raises ConfigError unless both cells and this command have the same version. Equal columns are not enough: a
        migration may change the meaning of rows.
        """
        here, there, mine = await _revision(self._source), await _revision(self._target), newest_revision()
        if not here == there == mine:
            raise ConfigError(
                f"The cells {self._here} and {self._there} have tables of different versions, or this command is of"
                f" another one: their revisions are {here} and {there}, that of the command is {mine}. Nothing was"
                " moved. Upgrade the older part first."
            )
        names = [table.name for table in MOVED]
        if await self._source.rows(GET_COLUMNS, tables=names) != await self._target.rows(GET_COLUMNS, tables=names):
            raise ConfigError(
                f"The cells {self._here} and {self._there} have tables of different versions: upgrade both first."
            )
        if older := await self._target.row(GET_REPLICA_WITHOUT_TOOL_SETS):
            raise ConfigError(
                f"The replica {older['address']} of the cell {self._there} is of the version before tool sets, and"
                " alive, or was in the last five minutes. Nothing was moved. Upgrade it, and try again."
            )

    async def _check(self, gone_to: str | None) -> None:
        if gone_to not in {None, self._there}:
            raise ConfigError(
                f"{self._owner} has been moved to the cell {gone_to}: name that cell, or run the move there."
            )
        if gone_to is None and not await self._has_rows(self._source, self._owner):
            raise NotFound(f"There is no owner {self._owner}; `turnstream owners list` shows all owners.")
        arrived = await self._target.row(GET_MOVE, owner=self._owner)
        if gone_to is not None and arrived is not None and arrived["state"] == "arrived":
            raise ConfigError(f"{self._owner} is in the cell {self._there} already.")
        if await self._has_rows(self._target, self._owner):
            raise ConfigError(f"The cell {self._there} has an owner {self._owner} already: erase that owner first.")
        if gone_to is None and await self._has_rows(self._source, self._departed):
            raise ConfigError(f"The cell {self._here} still has an earlier {self._departed!r}: erase that owner first.")
        if await self._has_rows(self._target, came_back := departed_name(self._owner, self._here)):
            raise ConfigError(f"The cell {self._there} still has {came_back!r}: erase that owner first.")
        names = [row["name"] for row in await self._source.rows(GET_TOKEN_NAMES, owner=self._owner)]
        if taken := await self._target.row(GET_TAKEN_NAME, names=names, owner=self._owner):
            raise ConfigError(
                f"The cell {self._there} has a token named {taken['name']!r} of another owner: delete one of the two"
                " (`turnstream tokens delete`), and create it under another name."
            )
        await self._check_key()

    async def _check_key(self) -> None:
        if (key := await self._source.row(GET_KEY, owner=self._owner)) is None:
            return
        if key["earlier"] is not None:
            raise ConfigError(
                f"{self._owner} gets a new key just now (`turnstream encryption rotate`). Nothing was moved: try again"
                " when the key before is destroyed."
            )
        master, _ = await self._wrapped_for_target(key["wrapped"])
        if replica := await self._target.row(GET_REPLICA_WITHOUT_KEY, master=master, extension=None):
            raise ConfigError(
                f"The replica {replica['address']} of the cell {self._there} lacks its master key, and is alive, or"
                f" was in the last five minutes: it could not decrypt the secrets of {self._owner}. Nothing was"
                " moved. Give the key to all replicas there, and try again."
            )
        sealed = await self._source.row(HAS_SEALED_ROWS, owner=self._owner)
        for form in FORMS[:2] if sealed and sealed["found"] else ():
            if replica := await self._target.row(GET_REPLICA_WITHOUT_KEY, master=master, extension=form):
                raise ConfigError(
                    f"The replica {replica['address']} of the cell {self._there} lacks the extension encryption, and is"
                    f" alive, or was in the last five minutes: it could not read the contents of {self._owner}. Nothing"
                    " was moved. Start it with the extension, and try again."
                )

    async def _mark_key(self) -> None:
        """Records the key of the rows that are copied ahead. If copies have an earlier key, deletes them, because no
        replica could decrypt them.
        """
        key, name = await self._source.row(GET_KEY, owner=self._owner), arriving_name(self._owner)
        marked = await self._target.row(GET_KEY, owner=name)
        if marked is not None and (key is None or marked["created_at"] != key["created_at"]):
            await self._ahead.forget(self._target)
            await self._target.rows(DELETE_KEY_MARK, owner=name)
        if key is not None:
            master, wrapped = await self._wrapped_for_target(key["wrapped"])
            values = {"master": master, "wrapped": wrapped, "created_at": key["created_at"]}
            await self._target.rows(MARK_KEY, owner=name, **values)

    async def _take_key(self, target: Transaction) -> None:
        key = await target.row(GET_KEY, owner=self._owner)
        marked = await target.row(GET_KEY, owner=arriving_name(self._owner))
        if marked is not None and (key is None or marked["created_at"] != key["created_at"]):
            raise ConfigError(
                f"The key of {self._owner} was changed while rows were copied; nothing was moved. Try again."
            )
        if key is not None:
            master, wrapped = await self._wrapped_for_target(key["wrapped"])
            await target.rows(REWRAP, owner=self._owner, before=key["wrapped"], master=master, wrapped=wrapped)
            await target.rows(DELETE_KEY_MARK, owner=arriving_name(self._owner))

    async def _wrapped_for_target(self, wrapped: bytes) -> tuple[bytes, bytes]:
        """Returns the id of the new cell's master key, and the owner's key wrapped with this master key. Raises
        ConfigError.
        """
        here, there = self._masters
        if here is None or there is None:
            cell, setting = (self._here, "TURNSTREAM_MASTER_KEY") if here is None else (self._there, TARGET_MASTER_KEY)
            raise ConfigError(
                f"{self._owner} has encrypted secrets: set {setting} to the master key of the cell {cell}, which every"
                " replica there needs. Nothing was moved."
            )
        try:
            return there.first, await there.wrap(self._owner, await here.unwrap(self._owner, wrapped))
        except CannotOpen as error:
            raise ConfigError(f"{error} Nothing was moved: TURNSTREAM_MASTER_KEY must have that key, too.") from None

    async def _has_rows(self, database: Database, owner: str) -> bool:
        row = await database.row(ANY_ROW, owner=owner)
        return row is not None and row["found"]

    async def _hold(self) -> None:
        async with self._source.transaction() as source:
            await source.row(SHORT_WAIT)  # other transactions wait for this lock
            await source.row(HOLD, owner=self._owner, cell=self._there, seconds=_SETTLE)
            await source.rows(AWAIT_WRITERS)

    async def _settle(self) -> None:
        """Waits until every replica has read the move, and no replica runs a turn of the owner."""
        await asyncio.sleep(2 * LOOK)
        end = monotonic() + _SETTLE - 3 * LOOK
        while running := await self._source.row(RUNNING, owner=self._owner):
            if monotonic() > end:
                raise ConfigError(f"Turn {running['id']} of {self._owner} does not stop; nothing was moved.")
            await asyncio.sleep(_PAUSE)

    async def _switch(self) -> None:
        async with self._target.transaction() as target:
            async with self._source.transaction() as source:
                self._step("lock")
                if not await source.rows(LOCK_MOVE, owner=self._owner):
                    raise ConfigError("The move took too long to begin; nothing was moved. Try again.")
                await source.rows(LOCK_CHATS, owner=self._owner)
                if await source.rows(RUNNING, owner=self._owner):
                    raise ConfigError("A turn of the owner was claimed meanwhile; nothing was moved. Try again.")
                await self._copy(source, target, self._owner)
                self._step("depart")
                for statement in HOLD_BACK_WEBHOOKS:
                    await source.rows(statement, owner=self._owner)
                for statement in (DEPART_CHATS, *DEPART.values()):
                    await source.rows(statement, owner=self._owner, departed=self._departed)
                await source.rows(HOLD_DEPARTED, departed=self._departed, cell=self._there)
                await source.rows(MARK, owner=self._owner, cell=self._there, state="gone")
                self._step("leave")
            self._step("arrive")

    async def _copy(self, source: Transaction, target: Transaction, owner: str) -> None:
        self._step("copy")
        await self._ahead.take_over(source, target, owner)
        for table in MOVED:
            if table.name not in AHEAD:
                await copy_rows(source, target, table.name, table.columns, table.copied, owner=owner, name=self._owner)
        await self._take_key(target)
        await target.rows(MARK, owner=self._owner, cell=self._here, state="arrived")
        await target.rows(NEED_TOKENS, owner=self._owner)
