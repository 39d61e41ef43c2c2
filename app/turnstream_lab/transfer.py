"""Copies a turn and its path into another database for a rerun, and repeats recorded answers and steers there."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from turnstream.domain.asks import AskAnswer
from turnstream.domain.blocks import Block
from turnstream.domain.errors import NotFound
from turnstream.domain.turns import Turn
from turnstream.kit.ids import new_id
from turnstream.storage.chats.actions import ANSWER_ASKS, GET_OPEN_ASKS
from turnstream.storage.chats.exchanges import ARRIVE, STEER
from turnstream.storage.chats.turns import GET_PATH, WHOLE_PATH, Turns
from turnstream.storage.database import Database, Statement, Transaction
from turnstream.storage.rows import to_json

_ANY_SIZE: Final = 2**62  # bytes

GET_PLACE = Statement("SELECT owner, chat_id FROM turns JOIN chats ON chats.id = chat_id WHERE turns.id = :turn")
# The text form of a row keeps every byte. Both databases have the same columns, by the same migrations.
GET_CHAT = Statement("SELECT chats::text AS line FROM chats WHERE id = :chat")
PUT_CHAT = Statement("INSERT INTO chats SELECT (CAST(CAST(:line AS text) AS chats)).*")
_COLUMNS: Final = """id, chat_id, parent_id, role, status, request, tool_set, attempt, recoveries, deaths, replica,
    declined, declined_until, cancel_requested, asked, arrivals, hook_failures, stop_reason, error, usage, created_at,
    started_at, ended_at, forked_from, lineage"""
GET_ROW = Statement("SELECT turns::text AS line FROM turns WHERE id = :turn")
PUT_ROW = Statement(
    f"INSERT INTO turns ({_COLUMNS}) SELECT {_COLUMNS} FROM (SELECT (CAST(CAST(:line AS text) AS turns)).*) AS turn"
)
PUT_AGAIN = Statement(
    """
    INSERT INTO turns (id, chat_id, parent_id, role, status, request, created_at)
    VALUES (:turn, :chat, :parent, 'assistant', 'queued', CAST(:request AS json), :created_at)
    """
)
GET_UPLOADS = Statement(
    """
    SELECT uploads::text AS line FROM uploads WHERE EXISTS (
        SELECT FROM blocks WHERE turn_id = ANY(CAST(:turns AS uuid[])) AND position(uploads.id::text IN data::text) > 0
    )
    """
)
PUT_UPLOADS = Statement(
    "INSERT INTO uploads SELECT (CAST(line AS uploads)).* FROM unnest(CAST(:lines AS text[])) AS line"
)
GET_TOOL_SETS = Statement(
    """
    SELECT tool_sets::text AS line FROM tool_sets
    WHERE owner = :owner AND digest IN (SELECT tool_set FROM turns WHERE id = ANY(CAST(:turns AS uuid[])))
    """
)
PUT_TOOL_SETS = Statement(
    """
    INSERT INTO tool_sets SELECT (CAST(line AS tool_sets)).* FROM unnest(CAST(:lines AS text[])) AS line
    ON CONFLICT DO NOTHING
    """
)
_CONTENTS: Final = {
    table: (
        Statement(f"SELECT {table}::text AS line FROM {table} WHERE turn_id = ANY(CAST(:turns AS uuid[]))"),
        Statement(f"INSERT INTO {table} SELECT (CAST(line AS {table})).* FROM unnest(CAST(:lines AS text[])) AS line"),
    )
    for table in ("blocks", "rounds", "asks", "steers")
}


async def find_turn(database: Database, turn: UUID) -> tuple[str, Turn]:
    """Finds a turn of any owner. Returns the owner and the turn. Raises NotFound."""
    row = await database.row(GET_PLACE, turn=turn)
    if row is None:
        raise NotFound(f"There is no turn {turn}.")
    return row["owner"], await Turns(database).get(row["owner"], row["chat_id"], turn)


async def copy_path(source: Database, target: Database, owner: str, turn: Turn) -> None:
    """Copies the ancestors of `turn` unchanged, and `turn` itself in its initial state."""
    async with source.transaction(snapshot=True) as there, target.transaction() as here:
        place = {"leaf": turn.id, "chat": turn.chat_id, "owner": owner}
        path = await there.rows(GET_PATH, limit=WHOLE_PATH, bytes=_ANY_SIZE, **place)
        before = [row["id"] for row in path if row["id"] != turn.id]
        await _copy(there, here, GET_CHAT, PUT_CHAT, chat=turn.chat_id)
        for id in before:
            await _copy(there, here, GET_ROW, PUT_ROW, turn=id)
        await _copy_many(there, here, GET_UPLOADS, PUT_UPLOADS, turns=[*before, turn.id])
        await _copy_many(there, here, GET_TOOL_SETS, PUT_TOOL_SETS, turns=before, owner=owner)
        for get, put in _CONTENTS.values():
            await _copy_many(there, here, get, put, turns=before)
        await here.rows(
            PUT_AGAIN,
            turn=turn.id,
            chat=turn.chat_id,
            parent=turn.parent_id,
            request=to_json(turn.request),
            created_at=turn.created_at,
        )


async def _copy(there: Transaction, here: Transaction, get: Statement, put: Statement, **which: UUID) -> None:
    row = await there.row(get, **which)
    assert row is not None
    await here.rows(put, line=row["line"])


async def _copy_many(there: Transaction, here: Transaction, get: Statement, put: Statement, **which: object) -> None:
    if lines := [row["line"] for row in await there.rows(get, **which)]:
        await here.rows(put, lines=lines)


async def answer_as_recorded(database: Database, then: Turn) -> bool:
    """Answers the waiting calls in `database` as in the recorded turn `then`. Returns False if it has no answers."""
    given = {ask.key: ask.answer for ask in then.asks if ask.answer is not None}
    async with database.transaction() as connection:
        rows = await connection.rows(GET_OPEN_ASKS, turn=then.id)
        waiting = [(row["round"], row["tool_use_id"]) for row in rows if row["answer"] is None]
        known = [place for place in waiting if place in given]
        approvers = sorted({name for row in rows for name in row["approvers"] or ()})
        await connection.rows(
            ANSWER_ASKS,
            turn=then.id,
            rounds=[round for round, _ in known],
            tool_use_ids=[id for _, id in known],
            answers=[to_json(given[place]) for place in known],
            actor="",
            principals=to_json(approvers),
        )
        if known:
            await connection.row(ARRIVE, turn=then.id)
    return bool(known)


async def steer_as_recorded(database: Database, turn: UUID, blocks: Sequence[Block]) -> None:
    """Sends a steer to a running turn."""
    async with database.transaction() as connection:
        superseded = to_json(AskAnswer("superseded"))
        await connection.rows(STEER, steer=new_id(), turn=turn, blocks=to_json(blocks), answer=superseded)
        await connection.row(ARRIVE, turn=turn)
