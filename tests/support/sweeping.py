"""Sweeps in tests: all steps at once."""

from collections.abc import AsyncIterator


async def swept(steps: AsyncIterator[int]) -> int:
    """How many rows all steps have removed."""
    return sum([count async for count in steps])
