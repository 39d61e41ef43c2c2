"""The monitor of a replica renews the replica's own lease and judges its peers."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from turnstream.domain import membership
from turnstream.domain.errors import StorageUnavailable
from turnstream.domain.membership import LOOK, MISSED, Peer
from turnstream.engine.upkeep import recovery
from turnstream.engine.upkeep.recovery import JOINED, KNOWN, SWEEP, ReplicaMonitor
from turnstream.kit.signals import Signals
from turnstream.storage.chats.actions import Actions
from turnstream.storage.runs.queue import Queue

LEASE = 10.0
ADA, BEN = UUID(int=1), UUID(int=2)


class Rows:
    """Replaces the queue and the storage of open text."""

    def __init__(self) -> None:
        self.peers_now: list[Peer] = []
        self.taken_over: list[list[UUID]] = []
        self.found: list[UUID] = []
        self.expired: list[UUID] = []
        self.renewed = 0
        self.draining = False
        self.notified: list[str] = []
        self.failures: list[BaseException] = []

    async def notify(self, payload: str) -> None:
        self.notified.append(payload)

    async def renew_lease(self, seconds: float) -> bool:
        assert seconds == LEASE
        self.renewed += 1
        return self.draining

    async def peers(self) -> Sequence[Peer]:
        if self.failures:
            raise self.failures.pop(0)
        return self.peers_now

    async def take_over(self, gone: Sequence[UUID]) -> Sequence[UUID]:
        self.taken_over.append(list(gone))
        return self.found

    async def expire(self) -> list[UUID]:
        expired, self.expired = self.expired, []
        return expired


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(recovery, "monotonic", clock)
    return clock


class Monitored(ReplicaMonitor):
    """A monitor that records the signals it sends."""

    def __init__(self, rows: Rows) -> None:
        self.signals, self.sent = Signals(), list[str]()
        for name in ("missed", "wake", "drain", "suspect"):
            getattr(self.signals, name).act(partial(self.sent.append, name))
        super().__init__(cast("Queue", rows), cast("Actions", rows), LEASE, self.signals)


async def test_a_replica_is_alone_for_a_moment_after_a_look_that_found_nobody(clock: Clock) -> None:
    rows, found = Rows(), list[bool]()
    monitor = Monitored(rows)
    await monitor.start()
    found.append(monitor.is_alone)  # this check may be older than the row of another replica that is starting
    await monitor.look()
    found.append(monitor.is_alone)
    monitor.signals.notified.send("queued")
    found.append(monitor.is_alone)
    clock.now += KNOWN
    found.append(monitor.is_alone)
    await monitor.look()
    monitor.signals.notified.send(JOINED)
    found.append(monitor.is_alone)
    await monitor.look()
    found.append(monitor.is_alone)
    rows.peers_now = [peer()]
    await monitor.look()
    found.append(monitor.is_alone)
    assert found == [False, True, True, False, False, True, False]


async def test_a_replica_announces_itself_and_looks_once_more_when_all_must_know_of_it(clock: Clock) -> None:
    """Until the second look, another replica may consider itself alone, and send no notifications."""
    rows = Rows()
    monitor = Monitored(rows)
    await monitor.start()
    assert rows.notified == [JOINED]
    for later, count in ((KNOWN, 0), (0.1, 1), (KNOWN, 1)):
        clock.now += later
        await monitor.look()
        assert monitor.sent.count("missed") == count


def peer(id: UUID = ADA, *, connected: bool = True, lapsed: bool = False, has_own_address: bool = False) -> Peer:
    return Peer(id, connected, lapsed, has_own_address, datetime.fromtimestamp(0, UTC), f"host-{id.int}:8000")


async def test_an_earlier_process_at_this_address_is_replaced_at_the_start() -> None:
    rows = Rows()
    rows.peers_now = [peer(ADA, has_own_address=True, connected=False), peer(BEN, connected=False, lapsed=True)]
    rows.found = [UUID(int=9)]
    monitor = Monitored(rows)
    with capture_logs() as logs:
        await monitor.start()
    (gone,) = (line for line in logs if line["event"] == "replicas.gone")
    assert (gone["replicas"], gone["turns"]) == ([str(ADA)], [str(UUID(int=9))])
    assert gone["addresses"] == ["host-1:8000"], "by which an operator finds the machine"
    assert (rows.taken_over, rows.renewed) == ([[ADA]], 1)
    assert monitor.sent == ["wake"], "the turns are claimed at once"


async def test_a_living_server_with_this_address_keeps_its_turns_and_is_named_once(clock: Clock) -> None:
    rows = Rows()
    monitor = Monitored(rows)
    rows.peers_now = [peer(ADA, has_own_address=True), peer(BEN)]
    with capture_logs() as logs:
        await monitor.start()
        for _ in range(3):
            clock.now += LOOK
            await monitor.look()
    assert rows.taken_over == [[]]
    shared = [line for line in logs if line["event"] == "replica.address_shared"]
    assert [line["replica"] for line in shared] == [str(ADA)]
    assert "TURNSTREAM_PORT" in shared[0]["remedy"]


async def test_a_replica_without_a_session_renews_its_lease_at_each_look(clock: Clock) -> None:
    rows = Rows()
    monitor = Monitored(rows)
    await monitor.start()
    monitor.disconnected()
    for _ in range(3):
        await monitor.look()
    monitor.connected()
    await monitor.look()
    assert rows.renewed == 1 + 3


async def test_the_lease_is_renewed_long_before_it_expires_and_orphans_are_swept(clock: Clock) -> None:
    rows = Rows()
    monitor = Monitored(rows)
    await monitor.start()
    start, renewals = clock.now, []
    while clock.now < start + SWEEP + 1:
        clock.now += 0.4
        before = rows.renewed
        await monitor.look()
        renewals += [clock.now] * (rows.renewed - before)
    gaps: list[Any] = [later - earlier for earlier, later in zip([start, *renewals], renewals, strict=False)]
    assert max(gaps) < LEASE / 2
    assert rows.taken_over == [[], []]


async def test_an_order_to_drain_is_read_with_the_renewal_of_the_lease(clock: Clock) -> None:
    rows = Rows()
    monitor = Monitored(rows)
    await monitor.start()
    for rows.draining, count in ((False, 0), (True, 1)):
        clock.now += LEASE / 2
        await monitor.look()
        assert monitor.sent.count("drain") == count


async def test_a_peer_that_is_gone_loses_its_turns_and_they_are_claimed(clock: Clock) -> None:
    rows = Rows()
    monitor = Monitored(rows)
    await monitor.start()
    rows.peers_now, rows.found = [peer(ADA, connected=False), peer(BEN)], [UUID(int=9)]
    await monitor.look()
    assert monitor.sent == []
    clock.now += MISSED + 0.1
    await monitor.look()
    assert rows.taken_over == [[], [ADA]]
    assert monitor.sent == ["wake"]


@pytest.mark.parametrize("trouble", ["session", "postgres", "stop", "clock"])
async def test_after_trouble_that_meets_all_replicas_no_peer_is_gone_and_paths_are_forgotten(
    trouble: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, ahead = Rows(), SimpleNamespace(ahead=0.0)
    monkeypatch.setattr(recovery, "CLOCK", ahead)
    monkeypatch.setattr(membership, "LOOK", 0)
    monitor = Monitored(rows)
    await monitor.start()
    for _ in range(4):
        clock.now += LEASE / 4 + 0.1
        await monitor.look()
    rows.peers_now = [peer(lapsed=True)]
    match trouble:
        case "session":
            monitor.disconnected()
        case "postgres":
            rows.failures = [StorageUnavailable("Postgres cannot be reached"), asyncio.CancelledError()]
            with pytest.raises(asyncio.CancelledError):
                await monitor.run()
        case "stop":
            clock.now += LEASE
        case _:
            ahead.ahead = 3600.0
    await monitor.look()
    assert rows.taken_over == [[]]
    assert monitor.sent.count("suspect") == 1, "Postgres has perhaps failed over"
    for _ in range(4):
        clock.now += LEASE / 4 + 0.1
        await monitor.look()
    assert rows.taken_over == [[], [ADA]]
