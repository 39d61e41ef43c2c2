"""Keeps this replica's lease, takes over the turns of replicas that are gone, and ends what waited too long."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from uuid import UUID

import structlog

from app.domain.errors import StorageUnavailable
from app.storage.actions import Actions
from app.storage.runs.journal import Journal
from app.storage.runs.queue import Peer, Queue

log = structlog.get_logger(__name__)

LOOK = 0.4  # seconds between two looks at the peers
# A peer without a session is gone after so many seconds, if only its own was cut.
MISSED = 0.8
SWEEP = 60.0


class ReplicaMonitor:
    def __init__(
        self, queue: Queue, journal: Journal, actions: Actions, lease: float, ring: Callable[[], None]
    ) -> None:
        self._queue = queue
        self._journal = journal
        self._actions = actions
        self._lease = lease
        self._ring = ring
        self._missed: dict[UUID, float] = {}
        self._in_touch = 0.0
        self._doubted: float | None = None
        self._renewed = 0.0
        self._swept = 0.0

    async def start(self) -> None:
        """Announces this replica, and takes over what an earlier process at the same address had."""
        await self._queue.renew_lease(self._lease)
        self._renewed = self._swept = self._in_touch = monotonic()
        await self._rescue([n.id for n in await self._queue.peers() if n.replaced])

    def doubt(self) -> None:
        """Our own session was lost: Postgres was away, so everybody's was, and it may take them a while to be back."""
        self._doubted = self._in_touch = monotonic()

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self._look(monotonic())
            except StorageUnavailable as error:
                log.error("lease.not_renewed", error=str(error))
                self._in_touch = monotonic()
                self._missed.clear()

    async def _look(self, now: float) -> None:
        if now - self._renewed > self._lease / 3:
            await self._queue.renew_lease(self._lease)
            self._renewed = now
        if expired := await self._actions.expire():
            log.info("asks.expired", turns=[str(turn) for turn in expired])
            self._ring()
        gone = self._gone(await self._queue.peers(), now)
        if gone:
            await self._rescue(gone)
        if now - self._swept > SWEEP:
            self._swept = now
            await self._rescue(())
            await self._journal.sweep()

    def _gone(self, peers: Sequence[Peer], now: float) -> list[UUID]:
        """Who has no session for long enough, or no lease. After Postgres was away everybody looks so for a while:
        neither is believed before we have been in touch for as long as a lease lasts.
        """
        if self._doubted is not None and now - self._doubted <= self._lease:
            self._missed.clear()
            return []
        alone = {n.id for n in peers if not n.connected}
        self._missed = {id: since for id, since in self._missed.items() if id in alone}
        for id in alone:
            self._missed.setdefault(id, now)
        lapsed = {n.id for n in peers if n.lapsed} if now - self._in_touch > self._lease else set()
        return [n.id for n in peers if n.id in lapsed or now - self._missed.get(n.id, now) >= MISSED]

    async def _rescue(self, gone: Sequence[UUID]) -> None:
        turns = await self._queue.take_over(gone)
        if gone or turns:
            log.warning("replicas.gone", replicas=[str(id) for id in gone], turns=[str(turn) for turn in turns])
        if turns:
            self._ring()
