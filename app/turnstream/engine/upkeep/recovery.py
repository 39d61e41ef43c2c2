"""Recovery: renews this replica's lease, takes over the turns of dead replicas, and expires old asks."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from uuid import UUID

import structlog

from turnstream.domain import membership
from turnstream.domain.errors import StorageError, StorageUnavailable
from turnstream.domain.membership import Look, Observations, Peer, judge, predecessors
from turnstream.kit.clock import CLOCK
from turnstream.kit.signals import Signals
from turnstream.storage.chats.actions import Actions
from turnstream.storage.runs.queue import Queue

log = structlog.get_logger(__name__)

JOINED = "joined"  # the notification of a replica that has registered
# Seconds for which "no peer found" stays valid. A check of the peers finds all replicas that registered before it.
KNOWN = 2.0
_REMEDY = "Two servers have this host name and port: give one of them another host name or TURNSTREAM_PORT."
SWEEP = 60.0  # seconds between two searches for turns whose replica has no row


class ReplicaMonitor:
    """Watches the other replicas. Renews the lease of `lease` seconds after a third of this time, or after `renewal`
    seconds if that is sooner. Sends the signal `missed` again when all other replicas know this replica and notify it.
    Sends the signal `drain` at each renewal while the replica's row has the order to drain.
    """

    def __init__(
        self, queue: Queue, actions: Actions, lease: float, signals: Signals, renewal: float | None = None
    ) -> None:
        self._queue = queue
        self._actions = actions
        self._lease = lease
        self._renewal = lease / 3 if renewal is None else min(renewal, lease / 3)
        self._signals = signals
        signals.notified.act(self._receive)
        self._alone_until = 0.0
        self._known_at: float | None = None
        self._namesakes: set[UUID] = set()  # peers already logged: live replicas with the address of this replica
        self._has_session = True
        self._renewed = 0.0
        self._swept = 0.0
        self._seen = Observations()

    async def start(self) -> None:
        """Registers this replica, and takes over the turns of an earlier process at its address."""
        await self._queue.renew_lease(self._lease)
        self._renewed = self._swept = now = monotonic()
        self._known_at = now + KNOWN
        self._seen = Observations(looked=now, ahead=CLOCK.ahead, reachable_since=now)
        peers = await self._queue.peers()
        await self._take_over(predecessors(peers), peers)
        with suppress(StorageError):
            await self._queue.notify(JOINED)

    @property
    def is_alone(self) -> bool:
        """Whether no other replica can expect a notification: the last check found no replica, and a replica that
        registered later does not rely on notifications yet.
        """
        return monotonic() < self._alone_until

    def _receive(self, payload: str) -> None:
        """Handles the notification of a new replica, which may be this replica itself: the next check decides."""
        if payload == JOINED:
            self._alone_until = 0.0

    async def notify_peers(self, payload: str) -> None:
        if not self.is_alone:
            await self._queue.notify(payload)

    def connected(self) -> None:
        """Called when this replica has its own session."""
        self._has_session = True
        self._signals.missed.send()

    def disconnected(self) -> None:
        """Called when this replica's own session is lost, and when it cannot be reopened. Postgres was then
        unavailable, so all sessions were probably lost, and the peers need time to reconnect.
        """
        self._has_session = False
        self._seen = self._seen.doubted(monotonic())
        self._signals.suspect.send()

    async def run(self) -> None:
        """Checks the peers until it is cancelled."""
        while True:
            await asyncio.sleep(membership.LOOK)
            try:
                await self.look()
            except StorageUnavailable as error:
                log.error("lease.not_renewed", error=str(error))
                self._seen = self._seen.unreachable(monotonic())
                self._signals.suspect.send()

    async def look(self) -> None:
        """Renews the lease if the renewal is due, judges the peers, and expires old asks."""
        now = monotonic()
        if now - self._renewed > self._renewal or not self._has_session:
            if await self._queue.renew_lease(self._lease):
                self._signals.drain.send()  # the notification may have been lost
            self._renewed = now
        if expired := await self._actions.expire():
            log.info("asks.expired", turns=[str(turn) for turn in expired])
            self._signals.wake.send()
        asked = monotonic()
        peers = await self._queue.peers()
        judgement = judge(self._seen, Look(peers, asked, monotonic(), CLOCK.ahead), self._lease)
        self._seen = judgement.seen
        self._alone_until = 0.0 if peers else asked + KNOWN
        if self._known_at is not None and asked > self._known_at:
            self._known_at = None
            self._signals.missed.send()
        if judgement.stalled is not None:
            log.warning("lease.doubted", seconds=round(judgement.stalled, 3))
            self._signals.suspect.send()
        self._warn_of_namesakes(peers)
        if judgement.gone:
            await self._take_over(judgement.gone, peers)
        if now - self._swept > SWEEP:
            self._swept = now
            await self._take_over((), ())  # turns of replicas without a row

    def _warn_of_namesakes(self, peers: Sequence[Peer]) -> None:
        for peer in peers:
            if peer.has_own_address and peer.connected and peer.id not in self._namesakes:
                self._namesakes.add(peer.id)
                log.warning("replica.address_shared", replica=str(peer.id), remedy=_REMEDY)

    async def _take_over(self, gone: Sequence[UUID], peers: Sequence[Peer]) -> None:
        turns = await self._queue.take_over(gone)
        if gone or turns:
            addresses, ids = [peer.address for peer in peers if peer.id in gone], [str(turn) for turn in turns]
            log.warning("replicas.gone", replicas=[str(id) for id in gone], addresses=addresses, turns=ids)
        if turns:
            self._signals.wake.send()
