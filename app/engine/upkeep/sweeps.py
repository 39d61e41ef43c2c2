"""Sweeps of rows that nobody needs any more: uploads that no turn refers to, deleted chats, expired answers of tools.

Each has a task of its own: it may take long, and no lease must wait for it.
"""

import asyncio
import random

import structlog

from app.storage.database import retry_while_unavailable
from app.storage.owner_changes import OwnerChanges
from app.storage.tool_cache import ToolCache
from app.storage.uploads import Uploads

log = structlog.get_logger(__name__)

_PAUSE = 6 * 3600.0  # seconds between two sweeps
_CACHE_PAUSE = 600.0
_KEPT = 24 * 3600.0  # seconds that an upload is kept, to be sent with a message


async def sweep_uploads(uploads: Uploads) -> None:
    """Sweeps for ever."""
    while True:
        await asyncio.sleep(_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311, only so that not all replicas sweep at once
        if removed := await retry_while_unavailable(lambda: uploads.sweep(_KEPT)):
            log.info("uploads.swept", uploads=removed)


async def sweep_deleted_chats(changes: OwnerChanges) -> None:
    """Removes old rows about deleted chats, for ever."""
    while True:
        await asyncio.sleep(_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311, only so that not all replicas sweep at once
        await retry_while_unavailable(changes.sweep)


async def sweep_tool_cache(cache: ToolCache) -> None:
    """Removes answers that have expired, for ever."""
    while True:
        await asyncio.sleep(_CACHE_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311, as above
        await retry_while_unavailable(cache.sweep)
