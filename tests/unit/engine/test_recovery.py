"""The replicas whose turns are taken over, and when."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from turnstream.domain.errors import StorageUnavailable
from turnstream.engine.upkeep import recovery
from turnstream.engine.upkeep.recovery import JOINED, KNOWN, LOOK, MISSED, SWEEP, ReplicaMonitor
from turnstream.kit.clock import DatabaseClock
from turnstream.storage.chats.actions import Actions
from turnstream.storage.runs.queue import Peer, Queue

LEASE = 10.0
ADA, BEN = UUID(int=1), UUID(int=2)


class Rows:
    """Stands in for the queue and for the stored open text."""

    def __init__(self) -> None:
        self.peers_now: list[Peer] = []
        self.taken_over: list[list[UUID]] = []
        self.found: list[UUID] = []
        self.expired: list[UUID] = []
        self.renewed = 0
        self.draining = False
        self.notified: list[str] = []

    async def notify(self, payload: str) -> None:
        self.notified.append(payload)

    async def renew_lease(self, seconds: float) -> bool:
        assert seconds == LEASE
        self.renewed += 1
        return self.draining

    async def peers(self) -> Sequence[Peer]:
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


def monitor_of(rows: Rows, wake: Callable[[], None] = lambda: None) -> ReplicaMonitor:
    return ReplicaMonitor(cast("Queue", rows), cast("Actions", rows), LEASE, wake)


async def test_a_replica_is_alone_for_a_moment_after_a_look_that_found_nobody(clock: Clock) -> None:
    rows, found = Rows(), list[bool]()
    monitor = monitor_of(rows)
    await monitor.start()
    found.append(monitor.is_alone)  # a look at its start may be older than the row of another one that starts
    await monitor._look(clock.now)
    found.append(monitor.is_alone)
    monitor.receive("queued")
    found.append(monitor.is_alone)
    clock.now += KNOWN
    found.append(monitor.is_alone)
    await monitor._look(clock.now)
    monitor.receive(JOINED)
    found.append(monitor.is_alone)
    await monitor._look(clock.now)
    found.append(monitor.is_alone)
    rows.peers_now = [peer()]
    await monitor._look(clock.now)
    found.append(monitor.is_alone)
    assert found == [False, True, True, False, False, True, False]


async def test_a_replica_announces_itself_and_looks_once_more_when_all_must_know_of_it(clock: Clock) -> None:
    """Until then another one may think that it is alone, and notify nobody."""
    rows, looks = Rows(), list[float]()
    monitor = ReplicaMonitor(
        cast("Queue", rows),
        cast("Actions", rows),
        LEASE,
        lambda: None,
        lambda: looks.append(1),
    )
    await monitor.start()
    assert rows.notified == [JOINED]
    for later, count in ((KNOWN, 0), (0.1, 1), (KNOWN, 1)):
        clock.now += later
        await monitor._look(clock.now)
        assert len(looks) == count


def peer(
    id: UUID = ADA, *, connected: bool = True, lapsed: bool = False, has_own_address: bool = False, lease_until: int = 0
) -> Peer:
    return Peer(id, connected, lapsed, has_own_address, datetime.fromtimestamp(lease_until, UTC))


async def test_an_earlier_process_at_this_address_is_replaced_at_the_start() -> None:
    rows, woken = Rows(), asyncio.Event()
    rows.peers_now = [peer(ADA, has_own_address=True, connected=False), peer(BEN, connected=False, lapsed=True)]
    rows.found = [UUID(int=9)]
    await monitor_of(rows, woken.set).start()
    assert (rows.taken_over, rows.renewed) == ([[ADA]], 1)
    assert woken.is_set(), "the turns are claimed at once"


async def test_a_living_server_with_this_address_keeps_its_turns_and_is_named_once(clock: Clock) -> None:
    rows = Rows()
    monitor = monitor_of(rows)
    rows.peers_now = [peer(ADA, has_own_address=True), peer(BEN)]
    with capture_logs() as logs:
        await monitor.start()
        for _ in range(3):
            clock.now += LOOK
            await monitor._look(clock.now)
    assert rows.taken_over == [[]]
    shared = [line for line in logs if line["event"] == "replica.address_shared"]
    assert [line["replica"] for line in shared] == [str(ADA)]
    assert "TURNSTREAM_PORT" in shared[0]["remedy"]


async def test_a_missing_session_counts_after_a_moment(clock: Clock) -> None:
    rows = Rows()
    monitor = monitor_of(rows)
    await monitor.start()
    rows.peers_now = [peer(ADA, connected=False), peer(BEN)]
    for later in (0.1, MISSED):
        await monitor._look(clock.now + later)
    assert rows.taken_over == [[]], "only at the start"
    await monitor._look(clock.now + 0.2 + MISSED)
    assert rows.taken_over == [[], [ADA]]


async def test_a_session_that_comes_back_was_never_missed(clock: Clock) -> None:
    rows = Rows()
    monitor = monitor_of(rows)
    await monitor.start()
    for later, connected in ((0.0, False), (0.5, True), (0.6, False), (0.6 + MISSED - 0.1, False)):
        rows.peers_now = [peer(connected=connected)]
        await monitor._look(clock.now + later)
    assert rows.taken_over == [[]]


async def test_a_peer_without_a_session_that_renews_its_lease_lives(clock: Clock) -> None:
    rows = Rows()
    monitor = monitor_of(rows)
    await monitor.start()
    for look in range(5):
        rows.peers_now = [peer(connected=False, lease_until=look)]
        await monitor._look(clock.now + look * (MISSED - 0.1))
    assert rows.taken_over == [[]]
    await monitor._look(clock.now + 4 * (MISSED - 0.1) + MISSED + 0.1)
    assert rows.taken_over == [[], [ADA]], "it has renewed it no more"


async def test_a_replica_without_a_session_renews_its_lease_at_each_look(clock: Clock) -> None:
    rows = Rows()
    monitor = monitor_of(rows)
    await monitor.start()
    monitor.disconnected()
    for _ in range(3):
        await monitor._look(clock.now)
    monitor.connected()
    await monitor._look(clock.now)
    assert rows.renewed == 1 + 3


async def test_an_expired_lease_counts_after_a_connection_of_one_lease(clock: Clock) -> None:
    rows = Rows()
    monitor = monitor_of(rows)
    await monitor.start()
    rows.peers_now = [peer(lapsed=True)]
    await monitor._look(clock.now + LEASE)
    assert rows.taken_over == [[]]
    await monitor._look(clock.now + LEASE + 0.1)
    assert rows.taken_over == [[], [ADA]]


async def test_a_replica_that_looked_late_doubts_its_view_of_the_others(clock: Clock) -> None:
    rows = Rows()
    monitor = monitor_of(rows)
    await monitor.start()
    clock.now += 2 * LEASE
    await monitor._look(clock.now)
    clock.now += LEASE
    rows.peers_now = [peer(connected=False, lapsed=True)]  # Postgres stood still, or all replicas did
    await monitor._look(clock.now)
    for _ in range(4):
        clock.now += LEASE / 4
        await monitor._look(clock.now)
    assert rows.taken_over == [[]]
    clock.now += LEASE / 4
    await monitor._look(clock.now)
    assert rows.taken_over == [[], [ADA]], "it is gone all the same"


async def test_after_postgres_was_away_no_peer_is_taken_over_before_it_can_connect_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows()
    monitor = monitor_of(rows)
    await monitor.start()
    rows.peers_now = [peer(connected=False)]
    await monitor._look(clock.now)  # the session is missed, and then Postgres is away for long

    async def away() -> Sequence[Peer]:
        clock.now += SWEEP - 5
        monkeypatch.setattr(rows, "peers", back)
        raise StorageUnavailable("Postgres cannot be reached")

    async def back() -> Sequence[Peer]:
        raise asyncio.CancelledError

    monkeypatch.setattr(rows, "peers", away)
    monkeypatch.setattr(recovery, "LOOK", 0)
    with pytest.raises(asyncio.CancelledError):
        await monitor.run()
    monkeypatch.setattr(rows, "peers", Rows.peers.__get__(rows))
    rows.peers_now = [peer(ADA, connected=False), peer(BEN, lapsed=True)]
    await monitor._look(clock.now)
    await monitor._look(clock.now + MISSED - 0.1)
    assert rows.taken_over == [[]]
    await monitor._look(clock.now + MISSED + 0.1)
    assert rows.taken_over == [[], [ADA]]


async def test_a_replica_that_lost_its_own_session_takes_no_peer_over_for_one_lease(clock: Clock) -> None:
    rows, forgotten = Rows(), list[float]()
    monitor = ReplicaMonitor(
        cast("Queue", rows),
        cast("Actions", rows),
        LEASE,
        lambda: None,
        forget=lambda: forgotten.append(clock.now),
    )
    await monitor.start()
    rows.peers_now = [peer(ADA, connected=False, lapsed=True)]
    monitor.disconnected()  # no statement has failed: Postgres was back before the next look
    assert len(forgotten) == 1, "and perhaps has failed over"
    for later in (0.0, MISSED + 0.1, LEASE):
        await monitor._look(clock.now + later)
    assert rows.taken_over == [[]]
    for later in (LEASE + 0.1, LEASE + 0.2 + MISSED):
        await monitor._look(clock.now + later)
    assert rows.taken_over[:2] == [[], [ADA]]


async def test_the_lease_is_renewed_long_before_it_expires_and_orphans_are_swept(clock: Clock) -> None:
    rows = Rows()
    monitor = monitor_of(rows)
    await monitor.start()
    start, renewals = clock.now, []
    while clock.now < start + SWEEP + 1:
        clock.now += 0.4
        before = rows.renewed
        await monitor._look(clock.now)
        renewals += [clock.now] * (rows.renewed - before)
    gaps: list[Any] = [later - earlier for earlier, later in zip([start, *renewals], renewals, strict=False)]
    assert max(gaps) < LEASE / 2
    assert rows.taken_over == [[], []]


async def test_an_order_to_drain_is_read_with_the_renewal_of_the_lease(clock: Clock) -> None:
    rows, ordered = Rows(), list[float]()
    monitor = ReplicaMonitor(
        cast("Queue", rows),
        cast("Actions", rows),
        LEASE,
        lambda: None,
        drain=lambda: ordered.append(clock.now),
    )
    await monitor.start()
    for rows.draining, count in ((False, 0), (True, 1)):
        clock.now += LEASE / 2
        await monitor._look(clock.now)
        assert len(ordered) == count


async def test_leases_that_expire_by_a_jump_of_the_clock_of_postgres_do_not_count_at_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    database_clock = DatabaseClock()
    monkeypatch.setattr(recovery, "CLOCK", database_clock)
    rows = Rows()
    monitor = monitor_of(rows)
    await monitor.start()
    clock.now += LEASE + 1
    rows.peers_now = [peer(lapsed=True)]
    database_clock._ahead += 3600
    for later in (0.4, LEASE / 3, LEASE / 3):
        clock.now += later
        monitor._looked = clock.now
        await monitor._look(clock.now)
    assert rows.taken_over == [[]], "only at the start"
    clock.now += LEASE / 2
    monitor._looked = clock.now
    await monitor._look(clock.now)
    assert rows.taken_over[-1] == [ADA], "it has not renewed its lease since: it is dead"
