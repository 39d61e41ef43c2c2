"""Deletes recordings of this machine whose turns are deleted, and recordings that are too old."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from uuid import UUID

import structlog

from turnstream.domain.errors import StorageUnavailable
from turnstream.storage.database import LONG, Database, Statement

log = structlog.get_logger(__name__)

GET_PRESENT_TURNS = Statement("SELECT id FROM turns WHERE id = ANY(CAST(:turns AS uuid[]))", timeout=LONG)


async def present_turns(database: Database, turns: Sequence[UUID]) -> set[UUID]:
    """Returns the ids in `turns` whose turns exist."""
    return {row["id"] for row in await database.rows(GET_PRESENT_TURNS, turns=turns)}


async def sweep_here(period: float, steps: Callable[[], AsyncGenerator[int, None]]) -> None:
    """Sweeps this machine's data until a cancellation. Every replica sweeps its own data."""
    while True:
        await asyncio.sleep(period * random.uniform(0.5, 1.0))  # noqa: S311, processes of one machine sweep in turn
        try:
            async with aclosing(steps()) as done:
                async for _ in done:
                    pass
        except StorageUnavailable as error:
            log.warning("sweep.waits", sweep="files", error=str(error))
