"""The journal: the open text of running turns, written for all of them at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.domain.blocks import Block
from app.domain.ids import new_id
from app.domain.turns import Turn
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
    INSERT INTO open_text (turn_id, attempt, index, start, round, type, text) VALUES (:mark, 0, 0, 0, 0, 'mark', '')
    ON CONFLICT DO NOTHING
    """
)
GET_OPEN_TEXT = Statement(
    "SELECT * FROM open_text WHERE turn_id = ANY(CAST(:turns AS uuid[])) ORDER BY turn_id, attempt, index, start"
)
# A piece that was on its way when its block closed stays behind; so does the text of a turn that was deleted.
SWEEP = Statement(
    """
    DELETE FROM open_text WHERE attempt > 0 AND NOT EXISTS (
        SELECT FROM turns WHERE turns.id = turn_id AND status IN ('running', 'queued')
    ) RETURNING turn_id
    """
)


@dataclass(frozen=True, slots=True)
class Piece:
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

    async def begin(self) -> None:
        """Sets the mark: before it, only beginnings are taken. Raises StorageUnavailable."""
        await self._database.rows(SET_MARK, mark=self._mark)

    async def append(self, pieces: Sequence[Piece]) -> frozenset[UUID]:
        """The turns whose pieces were taken; those of the others begin anew, if their claim still stands.

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
        return open_block_from(turn, await self._database.rows(GET_OPEN_TEXT, turns=[turn.id]))

    async def sweep(self) -> None:
        await self._database.rows(SWEEP)


def open_block_from(turn: Turn, rows: Sequence[Row]) -> Block | None:
    """From the journal's rows for `turn`, in their order. What an earlier, voided call left behind is passed over."""
    unsealed = [round for round in turn.rounds if not round.sealed and not round.voided]
    if not unsealed:
        return None
    mine = [row for row in rows if row["index"] == len(turn.blocks) and row["attempt"] >= unsealed[-1].attempt]
    mine = [row for row in mine if row["attempt"] == mine[-1]["attempt"]]
    text = ""
    for row in mine:
        if row["start"] > len(text):
            break  # Postgres was restarted and forgot the first pieces; the executor writes them all again
        text += row["text"][len(text) - row["start"] :]
    if not mine or mine[0]["start"] != 0:
        return None
    head = mine[0]
    return Block(
        index=head["index"],
        round=head["round"],
        attempt=head["attempt"],
        type=head["type"],
        text=text,
        tool_use_id=head["tool_use_id"],
        name=head["name"],
        interrupted=True,
    )
