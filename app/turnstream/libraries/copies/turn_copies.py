"""Statements that copy turns. Their texts name the columns of the tables."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final
from uuid import UUID

from turnstream.domain.kinds import KINDS
from turnstream.kit.ids import new_id
from turnstream.libraries.copies.cutting import FORKED, CutTurn, with_new_ids
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.chats.exchanges import TICK
from turnstream.storage.chats.turns import BLOCK_COLUMNS
from turnstream.storage.contents import BLOCKS, IS_SEALED, TEXT_MARK, TURNS
from turnstream.storage.database import Statement, Transaction
from turnstream.storage.rows import block_from, columns_of, sql_list, to_json
from turnstream.storage.runs.record import ADD_BLOCKS


def _copied(table: str, *others: str) -> str:
    """Returns the columns that a copy takes from the original: all except `others`, which get new values."""
    return ", ".join(f'"{name}"' for name in ALL_TABLES[table].columns if name not in others)


_OF_TURNS: Final = _copied(
    "turns",
    *("id", "chat_id", "parent_id", "parent_role", "status", "stop_reason", "error", "created_at", "ended_at"),
    # Columns that only open turns use, and the cost of the original, because a copy costs nothing.
    *(
        "recoveries",
        "deaths",
        "replica",
        "declined",
        "declined_until",
        "cancel_requested",
        "asked",
        "arrivals",
        "usage",
        "forked_from",
    ),
)
_NAMING: Final = tuple(kind.name for kind in KINDS.values() if kind.with_turn_ids)
_PORTION = 50  # turns whose blocks are in memory at once
_OF_BLOCKS: Final = _copied("blocks", "turn_id")
_OF_ROUNDS: Final = _copied("rounds", "turn_id", "stop_reason")

# The last turn may be cut, and its original may be open. A copy in the same chat gets the present time, so that readers
# of the chat get the copy as a new turn.
COPY_TURNS = Statement(
    f"""
    WITH touched AS (UPDATE chats SET {TICK} WHERE id = :chat RETURNING updated_at)
    INSERT INTO turns (
        id, chat_id, parent_id, status, stop_reason, error, created_at, ended_at, forked_from, {_OF_TURNS}
    )
    SELECT copy.id, :chat, copy.parent,
        CASE WHEN turns.id = :last THEN :status ELSE status END,
        CASE WHEN turns.id = :last THEN :stop_reason ELSE stop_reason END,
        CASE WHEN turns.id = :last THEN CAST(:error AS json) ELSE error END,
        CASE WHEN turns.chat_id = :chat THEN updated_at ELSE created_at END,
        coalesce(ended_at, updated_at), turns.id, {_OF_TURNS}
    FROM touched, unnest(CAST(:originals AS uuid[]), CAST(:copies AS uuid[]), CAST(:parents AS uuid[]))
        AS copy (original, id, parent)
    JOIN turns ON turns.id = copy.original
    RETURNING id
    """
)
COPY_BLOCKS = Statement(
    f"""
    INSERT INTO blocks (turn_id, {_OF_BLOCKS})
    SELECT copy.id, {_OF_BLOCKS}
    FROM unnest(CAST(:originals AS uuid[]), CAST(:copies AS uuid[])) AS copy (original, id)
    JOIN blocks ON turn_id = copy.original
    WHERE turn_id <> :last OR index < :count
    """
)
# Encrypted blocks must be decrypted, and encrypted again for their new row.
HAVE_SEALED = Statement(
    f"""
    SELECT FROM blocks WHERE turn_id = ANY(CAST(:originals AS uuid[])) AND {IS_SEALED}
    UNION ALL
    SELECT FROM turns WHERE id = ANY(CAST(:originals AS uuid[])) AND strpos(request::text, '{TEXT_MARK}') > 0
    LIMIT 1
    """
)
GET_REQUESTS = Statement(
    "SELECT id, request FROM turns WHERE id = ANY(CAST(:turns AS uuid[])) AND request IS NOT NULL", opens=[TURNS]
)
PUT_REQUESTS = Statement(
    """
    UPDATE turns SET request = copy.request
    FROM unnest(CAST(:turns AS uuid[]), CAST(:requests AS json[])) AS copy (turn, request) WHERE id = turn
    RETURNING id
    """,
    seals=[TURNS.named(id="turns", request="requests")],
)
GET_ORIGINALS = Statement(
    f"""
    SELECT turn_id, {_OF_BLOCKS} FROM blocks
    WHERE turn_id = ANY(CAST(:originals AS uuid[])) AND (turn_id <> :last OR index < :count) ORDER BY turn_id, index
    """,
    opens=[BLOCKS],
)
COPY_ROUNDS = Statement(
    f"""
    INSERT INTO rounds (turn_id, stop_reason, {_OF_ROUNDS})
    SELECT copy.id, CASE WHEN turn_id = :last AND number = :cut THEN '{FORKED}' ELSE stop_reason END, {_OF_ROUNDS}
    FROM unnest(CAST(:originals AS uuid[]), CAST(:copies AS uuid[])) AS copy (original, id)
    JOIN rounds ON turn_id = copy.original
    WHERE sealed_by IS NOT NULL AND (turn_id <> :last OR number = ANY(CAST(:numbers AS int[])))
    """
)
# Blocks that contain ids of turns.
GET_NAMING_BLOCKS = Statement(
    f"""
    SELECT {BLOCK_COLUMNS} FROM blocks
    WHERE turn_id = ANY(CAST(:copies AS uuid[])) AND type IN {sql_list(_NAMING)}
    """
)
CHANGE_DATA = Statement("UPDATE blocks SET data = CAST(:data AS json) WHERE turn_id = :turn AND index = :index")


async def copy_turns(
    connection: Transaction, owner: str, cut: CutTurn, chat: UUID, path: Sequence[UUID], before: UUID | None
) -> UUID:
    """Copies the turns `path` into `chat`, behind the turn `before`. The copy of the last turn gets the content `cut`.
    Returns the id of this last copy.
    """
    last, copies = cut.turn, [new_id() for _ in path]
    both = {"originals": path, "copies": copies, "last": last.id}
    await connection.rows(
        COPY_TURNS,
        chat=chat,
        parents=[before, *copies[:-1]],
        status=last.status,
        stop_reason=last.stop_reason,
        error=to_json(last.error) if last.error else None,
        **both,
    )
    ids, codec = dict(zip(path, copies, strict=True)), connection.codec
    if codec is None or not (codec.seals or await connection.rows(HAVE_SEALED, originals=path)):
        await connection.rows(COPY_BLOCKS, count=cut.kept, **both)
        for row in await connection.rows(GET_NAMING_BLOCKS, copies=copies):
            block = with_new_ids(block_from(row), ids)
            await connection.rows(CHANGE_DATA, turn=row["turn_id"], index=block.index, data=block.data)
    else:
        await _copy_opened(connection, owner, cut, ids)
    await connection.rows(COPY_ROUNDS, numbers=[round.number for round in last.rounds], cut=cut.cut_round, **both)
    await connection.rows(ADD_BLOCKS, owner=owner, turn=copies[-1], **columns_of(last.blocks[cut.kept :]))
    return copies[-1]


async def _copy_opened(connection: Transaction, owner: str, cut: CutTurn, ids: Mapping[UUID, UUID]) -> None:
    originals = list(ids)
    for start in range(0, len(originals), _PORTION):
        part = originals[start : start + _PORTION]
        given = {row["id"]: row["request"] for row in await connection.rows(GET_REQUESTS, owner=owner, turns=part)}
        copies = [ids[turn] for turn in given]
        await connection.rows(PUT_REQUESTS, owner=owner, turns=copies, requests=list(given.values()))
        rows = await connection.rows(GET_ORIGINALS, owner=owner, originals=part, last=cut.turn.id, count=cut.kept)
        for turn, found in groupby(rows, itemgetter("turn_id")):
            of_turn = list(found)
            blocks = [
                with_new_ids(block, ids) if (block := block_from(row)).type in _NAMING else block for row in of_turn
            ]
            columns = columns_of(blocks) | {"wholes": [row["whole"] for row in of_turn]}
            await connection.rows(ADD_BLOCKS, owner=owner, turn=ids[turn], **columns)
