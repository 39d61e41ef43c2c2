"""Removes files that were uploaded and are said by no turn: never sent, or their chat was deleted."""

import asyncio
import random

import structlog

from app.storage.database import retry_while_unavailable
from app.storage.owner_changes import OwnerChanges
from app.storage.uploads import Uploads

log = structlog.get_logger(__name__)

_PAUSE = 6 * 3600.0  # seconds
_KEPT = 24 * 3600.0  # seconds, in which a message may be sent


async def sweep_uploads(uploads: Uploads) -> None:
    """For ever."""
    while True:
        await asyncio.sleep(_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311, only so that replicas take turns
        if gone := await retry_while_unavailable(lambda: uploads.sweep(_KEPT)):
            log.info("uploads.swept", uploads=gone)


async def sweep_deleted_chats(changes: OwnerChanges) -> None:
    """Removes old rows about deleted chats, for ever."""
    while True:
        await asyncio.sleep(_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311, only so that replicas take turns
        await retry_while_unavailable(changes.sweep)
