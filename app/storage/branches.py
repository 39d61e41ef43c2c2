"""Branches: copies of a path by a fork, and the deletion of a turn with all that follows it."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import Table

from app.domain.errors import NotFound, RequestRefused
from app.domain.fork import FORKED, CutTurn
from app.domain.history import with_new_ids
from app.domain.kinds import SHORTENED, SUMMARY
from app.domain.turns import TurnRequest
from app.kit.ids import new_id
from app.storage import tables
from app.storage.chat_changes import PLACE
from app.storage.database import Database, Statement, Transaction
from app.storage.exchanges import CREATE_SIBLING, KEEP_KEY, TICK, Exchanges, IdempotencyKey, KeyTaken
from app.storage.rows import block_from, columns_of, sql_list, to_json
from app.storage.runs.record import INSERT_BLOCKS
from app.storage.turns import BLOCK_COLUMNS

# The most turns that one transaction deletes, so that the chat is not locked for long.
_BATCH = 200
# The most turns that a fork copies.
_MOST_COPIED = 10_000


def _copied(table: Table, *others: str) -> str:
    """The columns of a table that a copy takes over: all but `others`, which it gives values of its own."""
    return ", ".join(f'"{column.name}"' for column in table.columns if column.name not in others)


_OF_TURNS: Final = _copied(
    tables.turns,
    *("id", "chat_id", "parent_id", "parent_role", "status", "stop_reason", "error", "created_at", "ended_at"),
    # What only an open turn has, and what the original has cost: nothing is paid for a copy.
    *("recoveries", "replica", "cancel_requested", "asked", "arrivals", "usage", "forked_from"),
)
_OF_BLOCKS: Final = _copied(tables.blocks, "turn_id")
_OF_ROUNDS: Final = _copied(tables.rounds, "turn_id", "stop_reason")

GET_PATH_IDS = Statement(
    """
    WITH RECURSIVE path AS (
        SELECT id, parent_id, 0 AS depth FROM turns WHERE id = :turn AND chat_id = :chat
        UNION ALL
        SELECT turns.id, turns.parent_id, depth + 1 FROM turns JOIN path ON turns.id = path.parent_id
        WHERE depth < :most
    )
    SELECT id FROM path ORDER BY depth DESC
    """
)
# Its turns keep their times, and its own is later than all of them.
COPY_CHAT = Statement(
    """
    INSERT INTO chats (id, owner, title, system_prompt, settings, updated_at)
    SELECT :copy, owner, :title, system_prompt, settings, greatest(clock_timestamp(), updated_at)
    FROM chats WHERE id = :chat
    RETURNING id
    """
)
# The last turn may be cut, and its original may be open. In the same chat the copy has a time of its own: readers
# of the chat are sent it as new.
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
COPY_ROUNDS = Statement(
    f"""
    INSERT INTO rounds (turn_id, stop_reason, {_OF_ROUNDS})
    SELECT copy.id, CASE WHEN turn_id = :last AND number = :cut THEN '{FORKED}' ELSE stop_reason END, {_OF_ROUNDS}
    FROM unnest(CAST(:originals AS uuid[]), CAST(:copies AS uuid[])) AS copy (original, id)
    JOIN rounds ON turn_id = copy.original
    WHERE sealed_by IS NOT NULL AND (turn_id <> :last OR number = ANY(CAST(:numbers AS int[])))
    """
)
ADD_BLOCKS = Statement("WITH fenced AS (SELECT CAST(:turn AS uuid) AS id)" + INSERT_BLOCKS + " RETURNING turn_id")
# Blocks that name turns.
GET_NAMING_BLOCKS = Statement(
    f"""
    SELECT {BLOCK_COLUMNS} FROM blocks
    WHERE turn_id = ANY(CAST(:copies AS uuid[])) AND type IN {sql_list((SUMMARY, SHORTENED))}
    """
)
CHANGE_DATA = Statement("UPDATE blocks SET data = CAST(:data AS json) WHERE turn_id = :turn AND index = :index")

# A user turn does not stay without an answer: nothing could follow it.
GET_ROOT = Statement(
    """
    SELECT CASE WHEN role = 'assistant' AND NOT EXISTS (
        SELECT FROM turns AS other
        WHERE other.chat_id = :chat AND other.parent_id = turns.parent_id AND other.id <> turns.id
    ) THEN parent_id ELSE id END AS id
    FROM turns WHERE id = :turn AND chat_id = :chat
    """
)
# The turns that are farthest from the root come first, so that no turn ever lacks its parent.
DELETE_LAST = Statement(
    f"""
    WITH RECURSIVE below AS (
        SELECT id, 0 AS depth FROM turns WHERE id = :turn AND chat_id = :chat
        UNION ALL
        SELECT turns.id, depth + 1 FROM turns JOIN below ON turns.parent_id = below.id AND turns.chat_id = :chat
    ), gone AS (
        DELETE FROM turns WHERE id IN (SELECT id FROM below ORDER BY depth DESC, id LIMIT :most)
        RETURNING id, status, {PLACE} AS place
    ), touched AS (
        UPDATE chats SET {TICK} WHERE id = :chat AND EXISTS (SELECT FROM gone) RETURNING updated_at
    ), noted AS (
        INSERT INTO deleted_turns (turn_id, chat_id, place, deleted_at)
        SELECT id, :chat, place, updated_at FROM gone, touched
    )
    SELECT id, status = 'running' AS running FROM gone
    """
)


@dataclass(frozen=True, slots=True)
class Fork:
    """A copy of the path to a turn, into a new chat with this title, or of the turn alone, beside the original.
    `request` is that of a new answer, where the turn is a user turn.
    """

    cut: CutTurn
    new_chat: bool
    title: str | None = None
    request: TurnRequest | None = None


class Branches:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._exchanges = Exchanges(database)

    async def fork(self, owner: str, fork: Fork, key: IdempotencyKey | None) -> tuple[UUID, UUID]:
        """Returns the chat of the copy and its last assistant turn. Raises NotFound, RequestRefused, KeyTaken."""
        original = fork.cut.turn
        source, before = original.chat_id, original.parent_id
        async with self._exchanges.locked(owner, source, key) as (connection, _):
            rows = await connection.rows(GET_PATH_IDS, chat=source, turn=original.id, most=_MOST_COPIED)
            if not rows:
                raise NotFound(f"There is no turn {original.id} in chat {source}.")
            path, chat = [row["id"] for row in rows], source
            if not fork.new_chat:
                path = path[-1:]
            elif len(path) > _MOST_COPIED:
                longest = f"at most {_MOST_COPIED:,} turns, and the path to this turn is longer"
                raise RequestRefused(f"`into` must be `branch` here: a new chat gets {longest}.", field="into")
            else:
                chat, before = new_id(), None
                await connection.row(COPY_CHAT, copy=chat, chat=source, title=fork.title)
            leaf = await _copy(connection, fork.cut, chat, path, before)
            if fork.request is not None:
                row = await connection.row(
                    CREATE_SIBLING, id=new_id(), chat=chat, parent=leaf, request=to_json(fork.request)
                )
                assert row is not None
                leaf = row["id"]
            if key and not await connection.row(
                KEEP_KEY, owner=owner, key=key.key, digest=key.digest, turn=leaf, steer=None
            ):
                raise KeyTaken
        return chat, leaf

    async def delete(self, owner: str, chat: UUID, turn: UUID) -> AsyncGenerator[tuple[int, Sequence[UUID]], None]:
        """Deletes a turn and all that follow it, and the user turn before it where no other answer is left. Yields for
        each transaction how many turns it has deleted, and which of them were running. Raises NotFound.
        """
        root: UUID | None = None
        count = _BATCH
        while count == _BATCH:
            async with self._exchanges.locked(owner, chat) as (connection, _):
                if root is None:
                    found = await connection.row(GET_ROOT, chat=chat, turn=turn)
                    if found is None:
                        raise NotFound(f"There is no turn {turn} in chat {chat}.")
                    root = found["id"]
                rows = await connection.rows(DELETE_LAST, chat=chat, turn=root, most=_BATCH)
            count = len(rows)
            yield count, [row["id"] for row in rows if row["running"]]


async def _copy(connection: Transaction, cut: CutTurn, chat: UUID, path: Sequence[UUID], before: UUID | None) -> UUID:
    """Copies the turns `path` into `chat`, behind the turn `before`, the last one as `cut` has it. Returns its copy."""
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
    await connection.rows(COPY_BLOCKS, count=cut.kept, **both)
    await connection.rows(COPY_ROUNDS, numbers=[round.number for round in last.rounds], cut=cut.cut_round, **both)
    await connection.rows(ADD_BLOCKS, turn=copies[-1], **columns_of(last.blocks[cut.kept :]))
    ids = dict(zip(path, copies, strict=True))
    for row in await connection.rows(GET_NAMING_BLOCKS, copies=copies):
        block = with_new_ids(block_from(row), ids)
        await connection.rows(CHANGE_DATA, turn=row["turn_id"], index=block.index, data=block.data)
    return copies[-1]
