"""Turns in the middle of a run, without a worker."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from tests.support.harness import Asked, Harness
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn
from turnstream.kit.ids import new_id
from turnstream.storage.database import Statement
from turnstream.storage.runs.queue import Queue
from turnstream.storage.runs.record import Records, begin_rounds

OWNER_OF_CLAIM = Statement("SELECT replica FROM turns WHERE id = :turn")


async def claimed(harness: Harness, asked: Asked, replica: UUID | None = None) -> Turn:
    """Claims the turn for a replica without a lease, so that every other replica may take the turn over."""
    assert await Queue(harness.database, replica or new_id(), "nowhere", 1).claim(1) == [asked.turn]
    return await harness.turn(asked)


async def begun(harness: Harness, asked: Asked, replica: UUID | None = None) -> Turn:
    """Claims the turn and begins a round."""
    turn = await claimed(harness, asked, replica)
    assert await begin_rounds(harness.database, [(turn, first_round(turn.attempt))]) == {turn.id}
    return await harness.turn(asked)


def first_round(attempt: int = 1) -> Round:
    return Round(1, attempt, messages=1, usage={"input_tokens": 3}, started_at=datetime(2026, 1, 1, tzinfo=UTC))


def sealed(round: Round) -> Round:
    return replace(round, stop_reason="tool_use", sealed_by=round.attempt, sealed_at=datetime(2026, 1, 2, tzinfo=UTC))


async def records_of(harness: Harness, turn: Turn) -> Records:
    """Returns the writes for the turn's present claim."""
    row = await harness.database.row(OWNER_OF_CLAIM, turn=turn.id)
    assert row is not None
    return Records(harness.database, row["replica"], lambda: turn)
