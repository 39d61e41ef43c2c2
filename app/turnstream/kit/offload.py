"""Runs work that would block the event loop in a thread, or in portions."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# In characters. To build, encode or decode so many characters takes some milliseconds; a thread adds 0.1 ms.
LARGE = 250_000
# In characters. A block of a conversation costs as much time as this many characters, in addition to its own.
BLOCK = 500
# Seconds of work between two pauses.
_PORTION = 0.005


async def offload(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls `work`, which processes about `size` characters: in a thread if `size` is large, otherwise directly. The
    values that `work` reads must not change meanwhile.
    """
    if size < LARGE:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


class Portions:
    """Lets other tasks use the event loop, in work that consists of many small steps."""

    def __init__(self) -> None:
        self._until = perf_counter() + _PORTION

    async def pause(self) -> None:
        """Lets other tasks run if the last pause was at least five milliseconds ago. Await it between two steps."""
        if perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = perf_counter() + _PORTION
