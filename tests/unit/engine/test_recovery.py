"""Who is taken for dead, and when."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from app.domain.errors import StorageUnavailable
from app.engine.upkeep import recovery as rescuer
from app.engine.upkeep.recovery import MISSED, SWEEP, ReplicaMonitor
from app.storage.actions import Actions
from app.storage.runs.journal import Journal
from app.storage.runs.queue import Peer, Queue

LEASE = 10.0
ADA, BEN = UUID(int=1), UUID(int=2)


class Rows:
    """Stands in for queue and journal."""

    def __init__(self) -> None:
        self.neighbours_now: list[Peer] = []
        self.rescued: list[list[UUID]] = []
        self.found: list[UUID] = []
        self.expired: list[UUID] = []
        self.renewed = 0
        self.swept = 0

    async def renew_lease(self, seconds: float) -> None:
        assert seconds == LEASE
        self.renewed += 1

    async def peers(self) -> Sequence[Peer]:
        return self.neighbours_now

    async def take_over(self, gone: Sequence[UUID]) -> Sequence[UUID]:
        self.rescued.append(list(gone))
        return self.found

    async def sweep(self) -> None:
        self.swept += 1

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
    monkeypatch.setattr(rescuer, "monotonic", clock)
    return clock


def rescuer_of(rows: Rows, ring: Callable[[], None] = lambda: None) -> ReplicaMonitor:
    return ReplicaMonitor(cast("Queue", rows), cast("Journal", rows), cast("Actions", rows), LEASE, ring)


def peer(id: UUID = ADA, *, connected: bool = True, lapsed: bool = False, replaced: bool = False) -> Peer:
    return Peer(id, connected, lapsed, replaced)


async def test_whoever_had_this_address_is_replaced_at_the_start() -> None:
    rows, rung = Rows(), asyncio.Event()
    rows.neighbours_now = [peer(ADA, replaced=True), peer(BEN, connected=False, lapsed=True)]
    rows.found = [UUID(int=9)]
    await rescuer_of(rows, rung.set).start()
    assert (rows.rescued, rows.renewed) == ([[ADA]], 1)
    assert rung.is_set(), "what was taken over is claimed at once"


async def test_a_session_that_is_gone_is_believed_after_a_moment(clock: Clock) -> None:
    rows = Rows()
    rescuer = rescuer_of(rows)
    await rescuer.start()
    rows.neighbours_now = [peer(ADA, connected=False), peer(BEN)]
    for later in (0.1, MISSED):
        await rescuer._look(clock.now + later)
    assert rows.rescued == [[]], "only the start's"
    await rescuer._look(clock.now + 0.2 + MISSED)
    assert rows.rescued == [[], [ADA]]


async def test_a_session_that_comes_back_was_never_missed(clock: Clock) -> None:
    rows = Rows()
    rescuer = rescuer_of(rows)
    await rescuer.start()
    for later, connected in ((0.0, False), (0.5, True), (0.6, False), (0.6 + MISSED - 0.1, False)):
        rows.neighbours_now = [peer(connected=connected)]
        await rescuer._look(clock.now + later)
    assert rows.rescued == [[]]


async def test_a_lapsed_lease_is_believed_once_we_have_watched_for_as_long_as_one_lasts(clock: Clock) -> None:
    rows = Rows()
    rescuer = rescuer_of(rows)
    await rescuer.start()
    rows.neighbours_now = [peer(lapsed=True)]
    await rescuer._look(clock.now + LEASE)
    assert rows.rescued == [[]]
    await rescuer._look(clock.now + LEASE + 0.1)
    assert rows.rescued == [[], [ADA]]


async def test_after_postgres_was_away_nobody_is_taken_for_dead_before_they_could_come_back(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows()
    rescuer_ = rescuer_of(rows)
    await rescuer_.start()
    rows.neighbours_now = [peer(connected=False)]
    await rescuer_._look(clock.now)  # the session is missed, and then Postgres is away for long

    async def away() -> Sequence[Peer]:
        clock.now += SWEEP - 5
        monkeypatch.setattr(rows, "peers", back)
        raise StorageUnavailable("Postgres cannot be reached")

    async def back() -> Sequence[Peer]:
        raise asyncio.CancelledError

    monkeypatch.setattr(rows, "peers", away)
    monkeypatch.setattr(rescuer, "LOOK", 0)
    with pytest.raises(asyncio.CancelledError):
        await rescuer_.run()
    monkeypatch.undo()
    rows.neighbours_now = [peer(ADA, connected=False), peer(BEN, lapsed=True)]
    await rescuer_._look(clock.now)
    await rescuer_._look(clock.now + MISSED - 0.1)
    assert rows.rescued == [[]]
    await rescuer_._look(clock.now + MISSED + 0.1)
    assert rows.rescued == [[], [ADA]]


async def test_whoever_lost_its_own_session_believes_no_absence_for_as_long_as_a_lease_lasts(clock: Clock) -> None:
    rows = Rows()
    rescuer = rescuer_of(rows)
    await rescuer.start()
    rows.neighbours_now = [peer(ADA, connected=False, lapsed=True)]
    rescuer.doubt()  # no statement has failed: Postgres was back before the next look
    for later in (0.0, MISSED + 0.1, LEASE):
        await rescuer._look(clock.now + later)
    assert rows.rescued == [[]]
    for later in (LEASE + 0.1, LEASE + 0.2 + MISSED):
        await rescuer._look(clock.now + later)
    assert rows.rescued[:2] == [[], [ADA]]


async def test_the_lease_is_renewed_long_before_it_lapses_and_orphans_are_looked_for_now_and_then(clock: Clock) -> None:
    rows = Rows()
    rescuer = rescuer_of(rows)
    await rescuer.start()
    start, renewals = clock.now, []
    while clock.now < start + SWEEP + 1:
        clock.now += 0.4
        before = rows.renewed
        await rescuer._look(clock.now)
        renewals += [clock.now] * (rows.renewed - before)
    gaps: list[Any] = [later - earlier for earlier, later in zip([start, *renewals], renewals, strict=False)]
    assert max(gaps) < LEASE / 2
    assert (rows.rescued, rows.swept) == ([[], []], 1)
