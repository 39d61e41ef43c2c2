"""Erasures that owners have requested. When an erasure is due, one replica executes it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

import structlog

from turnstream.api.identity.authenticator import BELIEVED
from turnstream.domain.errors import StorageError
from turnstream.libraries.erasure.erasure import erase_owner, nothing_elsewhere
from turnstream.storage.database import Database, Statement

log = structlog.get_logger(__name__)

CLAIM_ERASURE = Statement(
    """
    UPDATE erasures SET claimed_until = now() + make_interval(secs => :lease)
    WHERE owner = (
        SELECT owner FROM erasures
        WHERE due_at <= now() AND coalesce(claimed_until < now(), true)
        ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING owner
    """
)
RENEW_ERASURE = Statement(
    "UPDATE erasures SET claimed_until = now() + make_interval(secs => :lease) WHERE owner = :owner"
)


class Erasures:
    """Executes due erasures. `delete_files` deletes the files of a turn on this machine, and returns their number. If a
    replica does not renew its claim for `lease` seconds, another replica repeats the erasure. Two simultaneous erasures
    are harmless.
    """

    def __init__(
        self,
        database: Database,
        delete_files: Callable[[UUID], int],
        lease: float,
        before: Callable[[str], Awaitable[None]] = nothing_elsewhere,
    ) -> None:
        self._database = database
        self._delete_files = delete_files
        self._before = before
        self._lease = lease

    async def run(self) -> None:
        while True:
            while (row := await self._database.row(CLAIM_ERASURE, lease=self._lease)) is not None:
                await self._erase(row["owner"])
            await asyncio.sleep(self._lease / 2 * random.uniform(0.5, 1.0))  # noqa: S311, replicas look in turn

    async def _erase(self, owner: str) -> None:
        """Erases the data of one owner. After a failure the next claim continues the erasure, so that other owners'
        erasures do not wait.
        """
        renewing = asyncio.create_task(self._renew(owner))
        try:
            erased = await erase_owner(self._database, owner, self._delete_files, BELIEVED, self._before)
        except (StorageError, OSError) as error:
            log.error("erasure.failed", owner=owner, error=str(error))
        else:
            log.info("owner.erased", owner=owner, rows=erased.total())
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])

    async def _renew(self, owner: str) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            with suppress(StorageError):
                await self._database.row(RENEW_ERASURE, owner=owner, lease=self._lease)
