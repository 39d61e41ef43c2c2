"""The journal: the text of the open blocks of running turns, written for all turns at once.

Its table is unlogged: Postgres empties it after a crash. A sentinel row of each writer shows whether that has happened.
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from app.domain.blocks import Block
from app.domain.turns import Turn
from app.kit.ids import new_id
from app.storage.database import LONG, Database, Row, Statement
from app.storage.rows import to_json

# Fenced without a lock, which is enough: a stale owner's tick begins long after the claim that made it stale. A piece
# from the middle of a block is written only while the writer's sentinel is there: after a crash of Postgres the pieces
# before it are gone, and so is the sentinel.
APPEND_TEXT = Statement(
    """
    WITH written AS (
        INSERT INTO open_text (turn_id, attempt, index, start, round, type, tool_use_id, name, text)
        SELECT piece.* FROM json_to_recordset(CAST(:pieces AS json)) AS piece (
            turn uuid, attempt int, index int, start int, round int, type text, tool_use_id text, name text, text text
        )
        WHERE piece.attempt = (SELECT CASE status WHEN 'running' THEN attempt END FROM turns WHERE id = piece.turn)
          AND (piece.start = 0 OR EXISTS (SELECT FROM open_text AS sentinel WHERE sentinel.turn_id = :sentinel))
        ON CONFLICT (turn_id, attempt, index, start) DO UPDATE SET text = EXCLUDED.text
        RETURNING 1
    )
    SELECT count(*) AS count FROM written
    """
)
SET_SENTINEL = Statement(
    """
    INSERT INTO open_text (turn_id, attempt, index, start, round, type, text)
    SELECT :fresh, 0, 0, 0, 0, 'mark', '' WHERE NOT EXISTS (SELECT FROM open_text WHERE turn_id = :sentinel)
    RETURNING turn_id
    """
)
GET_OPEN_TEXT = Statement("SELECT * FROM open_text WHERE turn_id = :turn ORDER BY attempt, index, start")
# From the last piece that begins within the known text: it may have been written again, and be longer now.
GET_NEW_TEXT = Statement(
    """
    SELECT open_text.* FROM unnest(
        CAST(:turns AS uuid[]), CAST(:attempts AS int[]), CAST(:indexes AS int[]), CAST(:lengths AS int[])
    ) AS known (turn, attempt, index, length)
    CROSS JOIN LATERAL (
        SELECT coalesce(max(start), 0) AS start FROM open_text
        WHERE turn_id = known.turn AND attempt = known.attempt AND index = known.index AND start <= known.length
    ) AS last
    JOIN open_text ON turn_id = known.turn
        AND (open_text.attempt, open_text.index, open_text.start) >= (known.attempt, known.index, last.start)
    ORDER BY turn_id, open_text.attempt, open_text.index, open_text.start
    """
)
# Left over: pieces that were on their way when their block closed, and the text of deleted turns.
SWEEP = Statement(
    """
    DELETE FROM open_text WHERE attempt > 0 AND NOT EXISTS (
        SELECT FROM turns WHERE turns.id = turn_id AND status IN ('running', 'queued')
    ) RETURNING turn_id
    """,
    timeout=LONG,
)


class JournalEntry(NamedTuple):
    """A piece of the text of an open block, from offset `start`. `block` is that block without its text."""

    turn: UUID
    block: Block
    start: int
    text: str


class Journal:
    """The journal of one writer, which has a sentinel row of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sentinel = new_id()

    async def begin(self) -> bool:
        """Sets the sentinel; without it only beginnings of blocks are written. False where it is there already. Raises
        StorageUnavailable; a sentinel that was set all the same does not count then.
        """
        fresh = new_id()
        row = await self._database.row(SET_SENTINEL, sentinel=self._sentinel, fresh=fresh)
        if row is not None:
            self._sentinel = fresh
        return row is not None

    async def append(self, pieces: Sequence[JournalEntry]) -> int:
        """Writes pieces and returns how many were written. For the others the claim is lost, or the sentinel. Raises
        StorageUnavailable; then it is not known which pieces were written.
        """
        # One value of JSON: of an array asyncpg examines each element, which costs three times as much.
        rows = [
            {
                "turn": turn,
                "attempt": block.attempt,
                "index": block.index,
                "start": start,
                "round": block.round,
                "type": block.type,
                "tool_use_id": block.tool_use_id,
                "name": block.name,
                "text": text,
            }
            for turn, block, start, text in pieces
        ]
        written = await self._database.row(APPEND_TEXT, sentinel=self._sentinel, pieces=to_json(rows))
        assert written is not None
        return int(written["count"])

    async def open_block(self, turn: Turn) -> Block | None:
        """The open block of the turn's unsealed round, as far as it is in the journal; None where nothing is."""
        block, _ = open_block_from(turn, await self._database.rows(GET_OPEN_TEXT, turn=turn.id))
        return block

    async def sweep(self) -> None:
        await self._database.rows(SWEEP)


def open_block_from(turn: Turn, rows: Sequence[Row], known: int = 0) -> tuple[Block | None, int]:
    """The open block of `turn` from the journal's rows in their order, and the offset of its text: above 0 where
    `known` characters of the block were known. Rows of an earlier, voided call are skipped.
    """
    unsealed = [round for round in turn.rounds if not round.sealed and not round.voided]
    if not unsealed:
        return None, 0
    mine = [row for row in rows if row["index"] == len(turn.blocks) and row["attempt"] >= unsealed[-1].attempt]
    mine = [row for row in mine if row["attempt"] == mine[-1]["attempt"]]
    if not mine or mine[0]["start"] > known:
        return None, 0
    start, text = mine[0]["start"], ""
    for row in mine:
        if row["start"] > start + len(text):
            break  # a gap: Postgres was restarted and lost pieces; the executor writes all of them again
        text += row["text"][start + len(text) - row["start"] :]
    head = mine[0]
    block = Block(
        index=head["index"],
        round=head["round"],
        attempt=head["attempt"],
        type=head["type"],
        text=text,
        tool_use_id=head["tool_use_id"],
        name=head["name"],
        interrupted=True,
    )
    return block, start
