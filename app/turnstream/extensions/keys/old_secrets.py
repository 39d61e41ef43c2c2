"""Secrets in rows that are older than the master key, and their encryption."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from turnstream.domain.secret_headers import (
    SERVERS_OF_PARAMS,
    credentials_of,
    needs_sealing,
    server_of,
    servers_of,
    with_credentials,
)
from turnstream.kit.sealing import CannotOpen, is_sealed
from turnstream.storage.database import LONG, Database, Row, Statement
from turnstream.storage.owners.owner_keys import OwnerKeys
from turnstream.storage.retention import NO_ID
from turnstream.storage.rows import from_json, to_json

Seal = Callable[[str, Mapping[str, str]], Awaitable[Mapping[str, str]]]

_STEP = 500  # rows
_TRIGGER = "trigger"  # the place for which the secrets of a trigger are encrypted


@dataclass(frozen=True, slots=True)
class SecretColumn:
    """A column with secrets. Rows are read in the order of their key, so that a step is as short in a large table as in
    a small one.
    """

    table: str
    name: str
    read: Statement
    write: Statement
    begin: Mapping[str, Any]


def _column(table: str, column: str, begin: Mapping[str, Any], owner: str = "owner") -> SecretColumn:
    """`begin` has the key, with values before all others."""
    key, place = ", ".join(begin), ", ".join(f":{name}" for name in begin)
    here = " AND ".join(f"{name} = :{name}" for name in begin)
    # A cheap test of the text first. The program finds the secrets.
    read = f"""
        WITH passed AS MATERIALIZED (
            SELECT {key}, {owner} AS of_owner, {column}::text AS found FROM {table}
            WHERE ({key}) > ({place}) ORDER BY {key} LIMIT :most
        )
        SELECT {key}, of_owner, CASE WHEN found ~ '"headers|authorization|"secrets"' THEN found END AS found
        FROM passed ORDER BY {key}
    """
    # A row that was changed meanwhile is left to the next call.
    write = f"""
        UPDATE {table} SET {column} = CAST(:after AS json) WHERE {here} AND {column}::text = :before RETURNING 1 AS done
    """
    return SecretColumn(table, column, Statement(read, timeout=LONG), Statement(write, timeout=LONG), begin)


# The digest of a tool set stays: it names the set, and the plain set would have the same.
COLUMNS: Final = (
    _column("browser_tokens", "fixed", {"id": NO_ID}),
    _column("chats", "settings", {"id": NO_ID}),
    _column("schedules", "request", {"id": NO_ID}),
    _column("schedules", "trigger", {"id": NO_ID}),
    _column("tool_sets", "tools", {"owner": "", "digest": b""}),
    _column("turns", "request", {"id": NO_ID}, "(SELECT owner FROM chats WHERE chats.id = turns.chat_id)"),
)


@dataclass(frozen=True, slots=True)
class EncryptionStep:
    """How many rows of a table a step has read, and in how many of them it has encrypted secrets. The key of `failed`
    owners cannot be unwrapped.
    """

    table: str
    read: int
    encrypted: int
    failed: frozenset[str]


async def encrypt(database: Database, keys: OwnerKeys) -> AsyncGenerator[EncryptionStep, None]:
    """Encrypts what is plain. Raises Conflict when a replica appears that cannot decrypt it."""
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
    sealed = await _sealed(document, partial(keys.sealed_headers, row["of_owner"]))
    if sealed == document:
        return False
    place = {name: row[name] for name in column.begin}
    return bool(await database.rows(column.write, **place, before=row["found"], after=to_json(sealed)))


async def _sealed(document: Any, seal: Seal) -> Any:
    """A tool set, or the options of a chat, a turn, a token or a schedule."""
    if isinstance(document, list):
        return [await _sealed_tool(each, seal) for each in document]
    changed = dict(document)
    if document.get("tools"):
        changed["tools"] = await _sealed(document["tools"], seal)
    if definitions := document.get("provider_tools"):
        changed["provider_tools"] = [to_json(await _sealed_definition(from_json(each), seal)) for each in definitions]
    params = document.get("params") or {}
    if document.get("secrets"):
        changed["secrets"] = await _sealed_values(_TRIGGER, document["secrets"], seal)
    if servers := servers_of(params):
        changed["params"] = {**params, SERVERS_OF_PARAMS: [await _sealed_definition(each, seal) for each in servers]}
    return changed


async def _sealed_tool(tool: Any, seal: Seal) -> Any:
    if not isinstance(tool, Mapping):
        return tool
    if isinstance(tool.get("http"), Mapping):
        return {**tool, "http": await _sealed_tool(tool["http"], seal)}
    if isinstance(tool.get("definition"), Mapping):
        return {**tool, "definition": await _sealed_definition(tool["definition"], seal)}
    if tool.get("headers"):
        return {**tool, "headers": await _sealed_values(tool["url"], tool["headers"], seal)}
    return tool


async def _sealed_definition(definition: Mapping[str, Any], seal: Seal) -> Mapping[str, Any]:
    values = await _sealed_values(server_of(definition), credentials_of(definition), seal)
    return with_credentials(definition, values)


async def _sealed_values(server: str, values: Mapping[str, str], seal: Seal) -> Mapping[str, str]:
    plain = any(needs_sealing(value) and not is_sealed(value) for value in values.values())
    return await seal(server, values) if plain else values
