"""Background tasks of a server."""

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
    """Runs `work` until the end of the block. The process is terminated if one of it ends before."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    for task in tasks:
        task.add_done_callback(_terminate_process)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _terminate_process(task: asyncio.Task[None]) -> None:
    """Terminates the process: without its background work a server only looks alive, and must be restarted."""
    if not task.cancelled():
        log.critical("background.failed", exc_info=task.exception())
        os.kill(os.getpid(), signal.SIGTERM)
