"""The work that a server does beside its requests."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

log = structlog.get_logger(__name__)


@asynccontextmanager
async def background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    for task in tasks:
        task.add_done_callback(_ended_too_soon)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _ended_too_soon(task: asyncio.Task[None]) -> None:
    """Without its background work a server only looks alive: better that somebody restarts it."""
    if not task.cancelled():
        log.critical("background.failed", exc_info=task.exception())
        os.kill(os.getpid(), signal.SIGTERM)
