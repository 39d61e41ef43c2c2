"""Snapshots: the rows and the journal of many turns as of one moment, for readers of turns on other replicas."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from app.domain.blocks import Block
from app.domain.turns import Turn
from app.storage.database import Database, Statement
from app.storage.rows import PRELIMINARY, block_from, round_from, turn_from
from app.storage.runs.journal import GET_NEW_TEXT, open_block_from
from app.storage.turns import BLOCK_COLUMNS, GET_ROUNDS, asks_and_steers_of, by_turn

# Without the request, which never changes and may be long.
GET_TURNS = Statement(
    f"""
    SELECT id, chat_id, parent_id, role, status, NULL AS request, attempt, cancel_requested, recoveries, asked,
        arrivals, hook_failures, stop_reason, error, usage, created_at, started_at, ended_at, forked_from,
        {PRELIMINARY}
    FROM turns WHERE id = ANY(CAST(:turns AS uuid[]))
    """
)
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


class MirrorPosition(NamedTuple):
    """The content of a view: the rows of a turn, and `length` characters of its open block, which `attempt` wrote."""

    turn: Turn
    attempt: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A turn and its open block. The text of `open_block` begins at its character `start`; the view has the rest."""

    turn: Turn
    open_block: Block | None
    start: int = 0


class Snapshots:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, known: Mapping[UUID, MirrorPosition]) -> dict[UUID, Snapshot]:
        """Reads the turns as they are now, without the content that is `known`. A deleted turn is absent."""
        turns = list(known)
        counts = [len(view.turn.blocks) for view in known.values()]
        async with self._database.transaction(snapshot=True) as moment:
            rows = await moment.rows(GET_TURNS, turns=turns)
            attempts = [view.turn.attempt for view in known.values()]
            news = await moment.rows(GET_NEW_BLOCKS, turns=turns, attempts=attempts, counts=counts)
            all_rounds = await moment.rows(GET_ROUNDS, turns=turns)
            attempts, lengths = [view.attempt for view in known.values()], [view.length for view in known.values()]
            texts = await moment.rows(GET_NEW_TEXT, turns=turns, attempts=attempts, indexes=counts, lengths=lengths)
            asks, _ = await asks_and_steers_of(moment, rows)
        blocks, rounds = by_turn(news, block_from), by_turn(all_rounds, round_from)
        pieces = by_turn(texts, lambda row: row)
        found: dict[UUID, Snapshot] = {}
        for row in rows:
            id = row["id"]
            before = known[id].turn
            kept = before.blocks if row["attempt"] == before.attempt else ()
            turn = turn_from(row, rounds[id], (*kept, *blocks[id]), asks[id])
            turn = replace(turn, request=before.request)
            found[id] = Snapshot(turn, *open_block_from(turn, pieces[id], known[id].length))
        return found
