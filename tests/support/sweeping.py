"""Runs sweeps in tests, with all their steps at once."""

import time
from collections.abc import AsyncIterator
from uuid import UUID

from turnstream.kit.ids import new_id


async def swept(steps: AsyncIterator[int]) -> int:
    """Returns how many rows all steps have removed."""
    return sum([count async for count in steps])


def id_of(days: float) -> UUID:
    """Returns the id of a row that is so many days old."""
    return UUID(int=int((time.time() - days * 86_400) * 1000) << 80 | new_id().int & (1 << 80) - 1)
