"""The journal: the open text of running turns, written for all of them at once."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from app.domain.blocks import Block
from app.domain.turns import Turn
from app.kit.ids import new_id
from app.storage.database import Database, Row, Statement

# Fenced without a lock, which is enough: a stale owner's tick begins long after the claim that made it stale. Whatever
# is not a beginning is taken only while the writer's mark stands: a Postgres that crashed has forgotten both.
APPEND_TEXT = Statement(
    """
    INSERT INTO open_text (turn_id, attempt, index, start, round, type, tool_use_id, name, text)
    SELECT piece.* FROM unnest(
        CAST(:turns AS uuid[]), CAST(:attempts AS int[]), CAST(:indexes AS int[]), CAST(:starts AS int[]),
        CAST(:block_rounds AS int[]), CAST(:types AS text[]), CAST(:tool_use_ids AS text[]), CAST(:names AS text[]),
        CAST(:texts AS text[])
    ) AS piece (turn, attempt, index, start, round, type, tool_use_id, name, text)
    WHERE piece.attempt = (SELECT CASE status WHEN 'running' THEN attempt END FROM turns WHERE id = piece.turn)
      AND (piece.start = 0 OR EXISTS (SELECT FROM open_text AS mark WHERE mark.turn_id = :mark))
    ON CONFLICT (turn_id, attempt, index, start) DO UPDATE SET text = EXCLUDED.text
    RETURNING turn_id
    """
)
SET_MARK = Statement(
    """
    INSERT INTO open_text (turn_id, attempt, index, start, round, type, text)
    SELECT :fresh, 0, 0, 0, 0, 'mark', '' WHERE NOT EXISTS (SELECT FROM open_text WHERE turn_id = :mark)
    RETURNING turn_id
    """
)
GET_OPEN_TEXT = Statement("SELECT * FROM open_text WHERE turn_id = :turn ORDER BY attempt, index, start")
# From the last piece on that begins in what is known: it may have been written again, and be longer now.
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
# A piece that was on its way when its block closed stays behind; so does the text of a turn that was deleted.
SWEEP = Statement(
    """
    DELETE FROM open_text WHERE attempt > 0 AND NOT EXISTS (
        SELECT FROM turns WHERE turns.id = turn_id AND status IN ('running', 'queued')
    ) RETURNING turn_id
    """
)


class JournalEntry(NamedTuple):
    """Text of an open block from offset `start`; `block` is the block without its text."""

    turn: UUID
    block: Block
    start: int
    text: str


class Journal:
    """Each instance keeps a mark of its own in the table, by which it sees that nothing was forgotten."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mark = new_id()

    async def begin(self) -> bool:
        """Sets the mark: before it, only beginnings are taken. False where it stands. Raises StorageUnavailable, after
        which one that was set after all does not count.
        """
        fresh = new_id()
        row = await self._database.row(SET_MARK, mark=self._mark, fresh=fresh)
        if row is not None:
            self._mark = fresh
        return row is not None

    async def append(self, pieces: Sequence[JournalEntry]) -> frozenset[UUID]:
        """The turns whose pieces were taken. The others have lost their claim, or Postgres has forgotten the mark.

        Raises StorageUnavailable; then nothing is known to be written.
        """
        blocks = [piece.block for piece in pieces]
        rows = await self._database.rows(
            APPEND_TEXT,
            mark=self._mark,
            turns=[piece.turn for piece in pieces],
            attempts=[block.attempt for block in blocks],
            indexes=[block.index for block in blocks],
            starts=[piece.start for piece in pieces],
            block_rounds=[block.round for block in blocks],
            types=[block.type for block in blocks],
            tool_use_ids=[block.tool_use_id for block in blocks],
            names=[block.name for block in blocks],
            texts=[piece.text for piece in pieces],
        )
        return frozenset(row["turn_id"] for row in rows)

    async def open_block(self, turn: Turn) -> Block | None:
        """The open block of the turn's unsealed round, as far as it was journaled; None where nothing was."""
        block, _ = open_block_from(turn, await self._database.rows(GET_OPEN_TEXT, turn=turn.id))
        return block

    async def sweep(self) -> None:
        await self._database.rows(SWEEP)


def open_block_from(turn: Turn, rows: Sequence[Row], known: int = 0) -> tuple[Block | None, int]:
    """The open block of `turn`, from the journal's rows in their order, and where in it its text begins: not at 0 where
    the rows are of a block of which `known` characters were known. What an earlier, voided call left is passed over.
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
            break  # Postgres was restarted and forgot the first pieces; the executor writes them all again
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
