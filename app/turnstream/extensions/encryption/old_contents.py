"""Finds rows whose contents are stored in another form than the settings require, and converts them."""

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from turnstream.domain.errors import Conflict, StatementRefused
from turnstream.extensions.encryption.codec import has_form
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.contents import (
    ASKS,
    BLOCKS,
    BYTES_MARK,
    CALLS,
    CHATS,
    DOCUMENTS,
    IS_SEALED,
    JOBS,
    REQUESTS,
    SCHEDULES,
    STEERS,
    TEXT_MARK,
    UPLOADS,
    Codec,
    SealedColumns,
)
from turnstream.storage.database import LONG, Database, Row, Statement
from turnstream.storage.retention import NO_ID

_STEP = 50  # rows that are listed at once; contents are read for conversion one by one
_SEARCHABLE = 600_000  # characters of a document that are made searchable at first
_TAKEN, _TOO_LARGE = "23505", "54"  # SQLSTATEs: a unique index was violated; a limit was exceeded (only the class)


@dataclass(frozen=True, slots=True)
class OldContents:
    """Statements for the contents of a table. `list` returns the keys and forms of some rows, sorted by key. `get`
    returns a row. `put` writes a row, unless the row has changed since `get`.
    """

    columns: SealedColumns
    list: Statement
    get: Statement
    put: Statement
    begin: Mapping[str, Any]


def _old(
    columns: SealedColumns,
    begin: Mapping[str, Any],
    is_sealed: str,
    version: str,
    changes: str,
    *,
    owner: str = "owner",
    then: str = "",
    also: str = "",
) -> OldContents:
    """Returns the statements for a table. `then` is SQL that follows the UPDATE, and `changed` are the updated rows.
    `also` is SQL for additional columns of the list.
    """
    key, place = ", ".join(begin), ", ".join(f":{name}" for name in begin)
    here = " AND ".join(f"{name} = :{name}" for name in begin)
    return OldContents(
        columns,
        Statement(
            f"SELECT {key}, {owner} AS owner, {is_sealed} AS is_sealed{also} FROM {columns.table}"
            f" WHERE ({key}) > ({place})"
            f" ORDER BY {key} LIMIT :most",
            timeout=LONG,
        ),
        Statement(f"SELECT *, {owner} AS owner, {version} AS version FROM {columns.table} WHERE {here}", timeout=LONG),
        Statement(
            f"WITH changed AS (UPDATE {columns.table} SET {changes} WHERE {here} AND {version} = :version RETURNING *)"
            f" {then} SELECT 1 AS done FROM changed",
            timeout=LONG,
        ),
        begin,
    )


def of_texts(columns: SealedColumns, begin: Mapping[str, Any], owner: str | None = None) -> OldContents:
    """Returns the statements for a table whose list returns the contents: SQL cannot determine whether some of them are
    in the other form.
    """
    found = _old(
        columns,
        begin,
        "NULL::boolean",
        f"{columns.table}.xmin::text",
        ", ".join(f"{name} = :{name}" for name in columns.columns),
        owner=owner or _OWNER.format(turn="turn_id"),
        also="".join(f", {name}" for name in columns.columns),
    )
    return found if columns is not ASKS else replace(found, put=PUT_ASK)


# The row is deleted and inserted again, because an update of an answer would add an entry to the audit trail.
_ASK_COLUMNS: Final = ", ".join(ALL_TABLES["asks"].columns)
_ASK_AGAIN: Final = re.sub(r"\b(answer|question)\b(?=,)", r"CAST(:\1 AS json)", _ASK_COLUMNS)
PUT_ASK = Statement(
    f"""
    WITH changed AS (
        DELETE FROM asks WHERE turn_id = :turn_id AND round = :round AND tool_use_id = :tool_use_id
            AND asks.xmin::text = :version
        RETURNING *
    )
    INSERT INTO asks ({_ASK_COLUMNS}) SELECT {_ASK_AGAIN} FROM changed RETURNING 1 AS done
    """,
    timeout=LONG,
)
_OWNER: Final = "(SELECT chats.owner FROM turns AS of_row JOIN chats ON chats.id = chat_id WHERE of_row.id = {turn})"
_BLOCK_CHANGES: Final = "text = :text, data = :data, notes = :notes, whole = :whole, client_data = :client_data"
# Removes the words of the turn from the search index, and queues the chat for indexing.
_SEARCHED_AGAIN: Final = """, forgotten AS (
        DELETE FROM search_texts USING changed JOIN turns ON turns.id = changed.turn_id
        WHERE search_texts.chat_id = turns.chat_id AND search_texts.turn_id = turns.id
    ), again AS (
        INSERT INTO search_backlog (chat_id) SELECT chat_id FROM changed JOIN turns ON turns.id = turn_id
        ON CONFLICT DO NOTHING
    )"""
OLD: Final = (
    _old(
        UPLOADS,
        {"id": NO_ID},
        f"substr(content, 1, {len(BYTES_MARK)}) = '\\x{BYTES_MARK.hex()}'::bytea",
        "digest",
        "content = :content, digest = :digest, file_name = :file_name",
    ),
    _old(
        DOCUMENTS,
        {"owner": "", "path": ""},
        f"starts_with(content, '{TEXT_MARK}')",
        "updated_at",
        f"content = :content, searchable = CASE WHEN starts_with(:content, '{TEXT_MARK}') THEN 0 ELSE :searchable END",
    ),
    _old(
        BLOCKS,
        {"turn_id": NO_ID, "index": -1},
        IS_SEALED,
        "blocks.xmin::text",
        _BLOCK_CHANGES,
        owner=_OWNER.format(turn="turn_id"),
        then=_SEARCHED_AGAIN,
    ),
    of_texts(CHATS, {"id": NO_ID}, "owner"),
    of_texts(SCHEDULES, {"id": NO_ID}, "owner"),
    of_texts(REQUESTS, {"id": NO_ID}, _OWNER.format(turn="turns.id")),
    of_texts(STEERS, {"id": NO_ID}),
    of_texts(ASKS, {"turn_id": NO_ID, "round": -1, "tool_use_id": ""}),
    of_texts(JOBS, {"id": NO_ID}),
    of_texts(CALLS, {"turn_id": NO_ID, "round": -1, "tool_use_id": ""}),
)

# The statements for rows that stay encrypted. The search index is not changed, because it does not have their words.
SEALED_BLOCKS: Final = _old(
    BLOCKS,
    {"turn_id": NO_ID, "index": -1},
    IS_SEALED,
    "blocks.xmin::text",
    _BLOCK_CHANGES,
    owner=_OWNER.format(turn="turn_id"),
)


@dataclass(frozen=True, slots=True)
class ContentsStep:
    """The numbers of rows of a table that one step has `read` and `changed`, and the number of rows that are `left` in
    the other form. `failed` are the owners whose contents cannot be decrypted.
    """

    table: str
    read: int
    changed: int
    left: int
    failed: frozenset[str]


async def change_contents(database: Database, codec: Codec, *, sealed: bool) -> AsyncGenerator[ContentsStep, None]:
    """Converts all rows to the form that `codec` writes, which is encrypted or plain. If a call is interrupted, the
    next call completes the conversion.
    """
    for old in OLD:
        place = dict(old.begin)
        while rows := await database.rows(old.list, most=_STEP, **place):
            place = {name: rows[-1][name] for name in place}
            others, changed, failed = [row for row in rows if _is_other(old, row, sealed)], 0, set[str]()
            for row in others:
                try:
                    changed += bool(await change_row(database, codec, old, {name: row[name] for name in old.begin}))
                except Conflict:
                    failed.add(row["owner"])
            yield ContentsStep(old.columns.table, len(rows), changed, len(others) - changed, frozenset(failed))


def _is_other(old: OldContents, row: Row, sealed: bool) -> bool:
    if row["is_sealed"] is None:
        return has_form(old.columns, dict(row), sealed=not sealed)
    return bool(row["is_sealed"] != sealed)


async def change_row(
    database: Database, codec: Codec, old: OldContents, here: Mapping[str, Any], *, sealed_alone: bool = False
) -> bool | None:
    """Stores a row again, in the form that `codec` writes now. With `sealed_alone`, does this only for an encrypted
    row. Returns None if no change is needed, and False if another write changed the row first.
    """
    row = await database.row(old.get, **here)
    if row is None or (sealed_alone and not has_form(old.columns, dict(row), sealed=True)):
        return None
    (plain,) = await codec.open(old.columns, {}, [row])
    values = {**plain, "searchable": _SEARCHABLE}
    if "digest" in old.columns.columns:
        values["digest"] = sha256(plain["content"]).digest()
    while True:
        stored = await codec.seal(old.columns, values)
        if all(stored[name] == row[name] for name in old.columns.columns):  # a replica cannot decrypt the new form
            return None
        parameters = {name: stored[name] for name in old.put.names if name in stored}
        try:
            return bool(await database.rows(old.put, **{**parameters, **here, "version": row["version"]}))
        except StatementRefused as error:
            state = getattr(error.__cause__, "sqlstate", "")
            if state == _TAKEN:  # the owner has since uploaded the same bytes; this row stays separate
                values["digest"] = sha256(row["id"].bytes + values["digest"]).digest()
            elif state.startswith(_TOO_LARGE):
                values["searchable"] //= 2
            else:
                raise
