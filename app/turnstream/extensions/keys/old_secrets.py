"""Encrypts secrets in rows that are older than the master key."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from turnstream.domain.errors import CannotOpen
from turnstream.libraries.secrets.credentials import needs_sealing
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import is_sealed
from turnstream.libraries.tool_secrets import SECRET_COLUMNS, with_secrets
from turnstream.storage.database import LONG, Database, Row, Statement
from turnstream.storage.retention import NO_ID
from turnstream.storage.rows import from_json, to_json

_STEP = 500  # rows
_BEFORE_ALL: Final[Mapping[str, Any]] = {"id": NO_ID, "owner": "", "digest": b""}


@dataclass(frozen=True, slots=True)
class SecretColumn:
    """A column with secrets. Rows are read in the order of their primary key, so that the duration of a step does not
    depend on the size of the table.
    """

    table: str
    name: str
    read: Statement
    write: Statement
    begin: Mapping[str, Any]


def _column(table: str, column: str, begin: Mapping[str, Any]) -> SecretColumn:
    """Returns the column with its statements. `begin` has a primary key that is lower than all keys of the table."""
    owner = "(SELECT owner FROM chats WHERE chats.id = turns.chat_id)" if table == "turns" else "owner"
    key, place = ", ".join(begin), ", ".join(f":{name}" for name in begin)
    here = " AND ".join(f"{name} = :{name}" for name in begin)
    # The query selects rows by a cheap pattern; the server then finds the secrets in these rows.
    read = f"""
        WITH passed AS MATERIALIZED (
            SELECT {key}, {owner} AS of_owner, {column}::text AS found FROM {table}
            WHERE ({key}) > ({place}) ORDER BY {key} LIMIT :most
        )
        SELECT {key}, of_owner, CASE WHEN found ~ '"headers|authorization|"secrets"' THEN found END AS found
        FROM passed ORDER BY {key}
    """
    # A row that was changed in the meantime is left to the next call of the command.
    write = f"""
        UPDATE {table} SET {column} = CAST(:after AS json) WHERE {here} AND {column}::text = :before RETURNING 1 AS done
    """
    return SecretColumn(table, column, Statement(read, timeout=LONG), Statement(write, timeout=LONG), begin)


COLUMNS: Final = tuple(
    _column(table, column, {name: _BEFORE_ALL[name] for name in key}) for (table, column), key in SECRET_COLUMNS.items()
)


@dataclass(frozen=True, slots=True)
class EncryptionStep:
    """A step of the encryption: the number of rows of `table` that the step has read, and the number of rows in which
    it has encrypted secrets. `failed` has the owners whose key cannot be unwrapped.
    """

    table: str
    read: int
    encrypted: int
    failed: frozenset[str]


async def encrypt(database: Database, keys: OwnerKeys) -> AsyncGenerator[EncryptionStep, None]:
    """Encrypts the secrets that rows have in plain text. Raises Conflict if a new replica cannot decrypt them."""
    for column in COLUMNS:
        place = dict(column.begin)
        while rows := await database.rows(column.read, most=_STEP, **place):
            place = {name: rows[-1][name] for name in place}
            encrypted, failed = 0, set[str]()
            for row in rows:
                try:
                    encrypted += row["found"] is not None and await _encrypt(database, column, row, keys)
                except CannotOpen:
                    failed.add(row["of_owner"])
            yield EncryptionStep(column.table, len(rows), encrypted, frozenset(failed))


async def _encrypt(database: Database, column: SecretColumn, row: Row, keys: OwnerKeys) -> bool:
    document = from_json(row["found"])

    async def seal(server: str, values: Mapping[str, str]) -> Mapping[str, str]:
        plain = any(needs_sealing(value) and not is_sealed(value) for value in values.values())
        return await keys.sealed_headers(row["of_owner"], server, values) if plain else values

    sealed = await with_secrets(document, seal)
    if sealed == document:
        return False
    place = {name: row[name] for name in column.begin}
    return bool(await database.rows(column.write, **place, before=row["found"], after=to_json(sealed)))
