"""What readers of turns that run elsewhere need: the rows and the journal of many turns, as of one moment."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from app.domain.blocks import Block
from app.domain.turns import Turn
from app.storage.database import Database, Row, Statement
from app.storage.journal import GET_OPEN_TEXT, open_block_from
from app.storage.rows import block_from, round_from, turn_from
from app.storage.turns import BLOCK_COLUMNS, GET_ROUNDS, people_of

GET_TURNS = Statement("SELECT * FROM turns WHERE id = ANY(CAST(:turns AS uuid[]))")
GET_NEW_BLOCKS = Statement(
    f"""
    SELECT {BLOCK_COLUMNS} FROM unnest(CAST(:turns AS uuid[]), CAST(:attempts AS int[]), CAST(:counts AS int[]))
        AS known (turn, attempt, count)
    JOIN turns ON turns.id = known.turn
    JOIN blocks ON turn_id = known.turn
        AND index >= CASE WHEN turns.attempt = known.attempt THEN known.count ELSE 0 END
    ORDER BY turn_id, index
    """
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    turn: Turn
    open_block: Block | None


class Snapshots:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, known: Mapping[UUID, Turn]) -> dict[UUID, Snapshot]:
        """The turns as they are now. Blocks that are known are not read again; a deleted turn is absent."""
        turns = list(known)
        async with self._database.transaction(snapshot=True) as connection:
            rows = await connection.rows(GET_TURNS, turns=turns)
            news = await connection.rows(
                GET_NEW_BLOCKS,
                turns=turns,
                attempts=[turn.attempt for turn in known.values()],
                counts=[len(turn.blocks) for turn in known.values()],
            )
            all_rounds = await connection.rows(GET_ROUNDS, turns=turns)
            journal = await connection.rows(GET_OPEN_TEXT, turns=turns)
            asks, _ = await people_of(connection, rows)
        blocks, rounds, pieces = _by_turn(news), _by_turn(all_rounds), _by_turn(journal)
        found: dict[UUID, Snapshot] = {}
        for row in rows:
            id = row["id"]
            kept: tuple[Block, ...] = known[id].blocks if row["attempt"] == known[id].attempt else ()
            all_blocks = (*kept, *map(block_from, blocks[id]))
            turn = turn_from(row, map(round_from, rounds[id]), all_blocks, asks[id])
            found[id] = Snapshot(turn, open_block_from(turn, pieces[id]))
        return found


def _by_turn(rows: Sequence[Row]) -> defaultdict[UUID, list[Row]]:
    found: defaultdict[UUID, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["turn_id"]].append(row)
    return found
