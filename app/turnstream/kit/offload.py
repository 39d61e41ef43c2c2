"""Work that would hold the event loop, done in a thread, or in portions."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# In characters. To build, encode or decode as many takes some milliseconds; the way through a thread takes 0.1.
LARGE = 250_000
# A block of a conversation costs as much as so many characters besides its own.
BLOCK = 500
# Seconds.
_PORTION = 0.005


async def offload(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls `work`, which is about `size` characters: in a thread if there are many, else directly. The values that
    `work` reads must not change meanwhile.
    """
    if size < LARGE:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


class Portions:
    """Gives others their turn on the event loop, in work that consists of many small steps."""

    def __init__(self) -> None:
        self._until = perf_counter() + _PORTION

    async def pause(self) -> None:
        """To be awaited between two steps: pauses if the last pause is five milliseconds ago."""
        if perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = perf_counter() + _PORTION
