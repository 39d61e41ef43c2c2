"""Decides whether a replica is dead: for each rule, and over random histories of an observer, Postgres's clock and
peers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.domain.membership import LOOK, MISSED, Look, Observations, Peer, judge, predecessors
from turnstream.kit.clock import DatabaseClock

LEASE = 10.0
ADA, BEN, CAT = (UUID(int=number) for number in range(1, 4))
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
BEGUN = Observations(looked=0.0, ahead=0.0, reachable_since=0.0)


def peer(
    id: UUID = ADA, *, connected: bool = True, lapsed: bool = False, own: bool = False, lease_until: float = 0
) -> Peer:
    return Peer(id, connected, lapsed, own, EPOCH + timedelta(seconds=lease_until))


def looks(*peers: Peer, at: Sequence[float], seen: Observations = BEGUN) -> tuple[list[Sequence[UUID]], Observations]:
    """Returns the peers that are judged dead at each of these times, if the rows do not change."""
    found = []
    for now in at:
        judgement = judge(seen, Look(peers, now, now, seen.ahead), LEASE)
        seen = judgement.seen
        found.append(judgement.gone)
    return found, seen


# --- the rules -------------------------------------------------------------------------------------------------------


def test_only_a_predecessor_without_a_session_is_replaced_at_the_start() -> None:
    peers = [peer(ADA, own=True, connected=False), peer(BEN, own=True), peer(CAT, connected=False, lapsed=True)]
    assert predecessors(peers) == [ADA]


def test_a_missing_session_counts_after_a_moment() -> None:
    found, _ = looks(peer(ADA, connected=False), peer(BEN), at=(0.1, MISSED, 0.2 + MISSED))
    assert found == [[], [], [ADA]]


def test_the_time_that_a_read_takes_does_not_count_as_a_missing_session() -> None:
    away = (peer(connected=False),)
    seen = judge(BEGUN, Look(away, 0.1, 2.0, 0.0), LEASE).seen
    assert judge(seen, Look(away, 2.0 + MISSED / 2, 2.0 + MISSED, 0.0), LEASE).gone == []


def test_a_session_that_comes_back_was_never_missed() -> None:
    seen = BEGUN
    for now, connected in ((0.0, False), (0.5, True), (0.6, False), (0.5 + MISSED, False)):
        found, seen = looks(peer(connected=connected), at=[now], seen=seen)
        assert found == [[]]


def test_a_peer_without_a_session_that_renews_its_lease_lives_until_it_does_not() -> None:
    seen, now = BEGUN, 0.0
    for renewal in range(5):
        now += MISSED - 0.1
        found, seen = looks(peer(connected=False, lease_until=renewal), at=[now], seen=seen)
        assert found == [[]]
    found, _ = looks(peer(connected=False, lease_until=4), at=[now + MISSED + 0.1], seen=seen)
    assert found == [[ADA]]


@pytest.mark.parametrize("seen", [BEGUN, BEGUN.unreachable(0.0), BEGUN.doubted(0.0)])
def test_an_expired_lease_counts_when_postgres_was_reachable_for_one_lease(seen: Observations) -> None:
    found, _ = looks(peer(lapsed=True), at=(3, 6, 9, LEASE, LEASE + 0.1), seen=seen)
    assert found == [[], [], [], [], [ADA]]


def test_a_peer_that_was_missed_before_postgres_was_away_has_time_to_connect_again() -> None:
    _, seen = looks(peer(connected=False), at=[0.1])
    found, _ = looks(peer(connected=False), at=(5 + 0.1, 5 + MISSED, 5 + MISSED + 0.2), seen=seen.unreachable(5))
    assert found == [[], [], [ADA]]


def test_after_the_sessions_of_all_were_cut_a_missing_one_counts_a_lease_later() -> None:
    times = (0.1, 0.2 + MISSED, 4, 7, LEASE, LEASE + 0.1, LEASE + 0.2 + MISSED)
    found, _ = looks(peer(connected=False), at=times, seen=BEGUN.doubted(0.0))
    assert found == [[], [], [], [], [], [], [ADA]]


@pytest.mark.parametrize(("late", "jump"), [(LOOK + LEASE / 3 + 0.1, 0.0), (0.1, 3600.0), (0.1, LEASE / 3 + 0.1)])
def test_a_late_look_and_a_clock_that_was_set_forward_are_doubted_for_one_lease(late: float, jump: float) -> None:
    everybody = (peer(ADA, connected=False), peer(BEN, lapsed=True))
    first = judge(BEGUN, Look(everybody, late, late, jump), LEASE)
    assert (first.gone, first.stalled) == ([], max(late, jump))
    times = [late + later for later in (3, 6, 9, LEASE - 0.1, LEASE + 0.1, LEASE + 0.2 + MISSED)]
    found, _ = looks(*everybody, at=times, seen=first.seen)
    assert found == [[], [], [], [], [BEN], [ADA, BEN]]


@pytest.mark.parametrize(("late", "jump"), [(LOOK, 0.0), (LOOK + LEASE / 3 - 0.1, 0.0), (LOOK, -3600.0)])
def test_a_look_in_time_and_a_clock_that_was_set_back_raise_no_doubt(late: float, jump: float) -> None:
    judgement = judge(BEGUN, Look((), late, late, jump), LEASE)
    assert (judgement.stalled, judgement.seen.doubted_at) == (None, -math.inf)


# --- random histories ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One look of the observer: the pause before the look, the time that its read takes, whether the read finds CAT's
    session, and what happens during the pause. `late`: only the observer pauses. `frozen`: all replicas pause. `cut`:
    Postgres is away, and all sessions end. `away`: Postgres does not answer, and the sessions survive. `step`: the
    clock of Postgres is set by `clock` seconds.
    """

    pause: float
    latency: float = 0.01
    flaps: bool = False
    event: str = "calm"
    clock: float = 0.0


LATENCIES = st.floats(0.001, 1.0)
CALM = st.builds(Step, st.floats(LOOK, LEASE / 3), LATENCIES, st.booleans())
TROUBLE = st.one_of(
    st.builds(Step, st.floats(LOOK, 3 * LEASE), LATENCIES, st.booleans(), st.sampled_from(["late", "cut", "away"])),
    # No replica notices a shorter freeze, so the observer would take over a peer that has no session and cannot renew
    # its lease during the freeze.
    st.builds(Step, st.floats(LOOK + LEASE / 3, 3 * LEASE), LATENCIES, st.booleans(), st.just("frozen")),
    st.builds(Step, st.just(LOOK), event=st.just("step"), clock=st.floats(-2 * LEASE, 2 * LEASE)),
)
# A quiet time before each failure lets the observer confirm its signs. `look` sets the clock at most once in a lease.
QUIET = [Step(LEASE / 4)] * 5
HISTORIES = st.lists(st.tuples(st.just(QUIET) | st.lists(CALM, max_size=5), TROUBLE), max_size=8)


class Replica:
    """A peer that renews its lease every `renewal` seconds until the time `dies`."""

    def __init__(self, id: UUID, renewal: float, dies: float) -> None:
        self.id, self.renewal, self.dies = id, renewal, dies
        self.next = self.lease_until = self.session_from = 0.0


class World:
    """An observer and Postgres. The clock of Postgres is `ahead` seconds ahead of the time that passes."""

    def __init__(self, dies: float = math.inf) -> None:
        """ADA lives. BEN's machine fails at `dies`, but Postgres still reports his session. CAT, whose session comes
        and goes, is killed at `dies`.
        """
        self.now = self.ahead = 0.0
        slow, quick = LEASE / 3 + LOOK, MISSED - 0.1
        self.peers = [Replica(ADA, slow, math.inf), Replica(BEN, slow, dies), Replica(CAT, quick, dies)]
        self.stepped = -math.inf
        self._clock = DatabaseClock()
        self._pass(0.0)
        self._clock.learn(EPOCH, 0.0, 0.0)
        self.seen = Observations(looked=0.0, ahead=self._clock.ahead, reachable_since=0.0)

    def _pass(self, seconds: float, *, working: bool = True) -> None:
        """Lets time pass. The replicas renew their leases on time, or, if nothing works, soon after."""
        self.now += seconds
        for replica in self.peers:
            while replica.next <= self.now:
                if working and replica.next < replica.dies:
                    replica.lease_until = replica.next + self.ahead + LEASE
                replica.next = replica.next + replica.renewal if working else self.now + MISSED / 2

    def look(self, step: Step) -> Sequence[UUID]:
        works = step.event not in {"frozen", "cut", "away"}
        self._pass(step.pause, working=works)
        if step.event == "cut":
            self.seen = self.seen.doubted(self.now)
            for replica in self.peers:
                replica.session_from = self.now + LEASE / 2
        if step.event == "away":
            self.seen = self.seen.unreachable(self.now)
        if step.event == "step" and self.now > self.stepped + LEASE:
            self.ahead, self.stepped = self.ahead + step.clock, self.now
        asked = self.now
        self._pass(step.latency / 2)
        rows = [
            peer(
                each.id,
                connected=each.session_from <= self.now and (each.id != CAT or (step.flaps and self.now < each.dies)),
                lapsed=each.lease_until < self.now + self.ahead,
                lease_until=each.lease_until,
            )
            for each in self.peers
        ]
        time = EPOCH + timedelta(seconds=self.now + self.ahead)
        self._pass(step.latency / 2)
        self._clock.learn(time, asked, self.now)
        judgement = judge(self.seen, Look(rows, asked, self.now, self._clock.ahead), LEASE)
        self.seen = judgement.seen
        return judgement.gone

    def live(self, history: Sequence[tuple[Sequence[Step], Step]]) -> set[UUID]:
        """Returns the peers that were judged dead."""
        return {id for calm, trouble in history for step in (*calm, trouble) for id in self.look(step)}

    def rest(self, until: float) -> set[UUID]:
        """Looks without trouble until two looks have happened after `until`."""
        found, after = set[UUID](), 0
        while after < 2:
            found |= {*self.look(Step(LOOK))}
            after += self.now > until
        return found


@given(HISTORIES, st.lists(CALM))
def test_no_trouble_of_the_observer_of_postgres_or_of_its_clock_makes_a_live_replica_gone(
    history: list[tuple[list[Step], Step]], rest: list[Step]
) -> None:
    assert World().live([*history, (rest, Step(LOOK))]) == set()


@given(HISTORIES, st.floats(0, 60))
def test_a_dead_replica_is_gone_soon_after_its_death_and_at_most_a_lease_after_the_last_trouble(
    history: list[tuple[list[Step], Step]], dies: float
) -> None:
    world = World(dies)
    found = world.live(history)
    over = world.now + LEASE
    found |= world.rest(MISSED + max(dies, over if history else 0.0))
    assert CAT in found, "its session is gone"
    found |= world.rest(max(world.peers[1].lease_until - world.ahead, over))
    assert BEN in found, "its lease has expired"
    assert ADA not in found


PEERS = st.lists(
    st.builds(
        peer,
        st.sampled_from([ADA, BEN, CAT]),
        connected=st.booleans(),
        lapsed=st.booleans(),
        own=st.booleans(),
        lease_until=st.integers(0, 2),
    ),
    unique_by=lambda each: each.id,
)
TIMES = st.floats(0, 100)
OBSERVATIONS = st.builds(
    Observations,
    looked=TIMES,
    ahead=TIMES,
    reachable_since=TIMES,
    doubted_at=TIMES | st.just(-math.inf),
    missed=st.dictionaries(st.tuples(st.sampled_from([ADA, BEN]), st.just(EPOCH)), TIMES),
)


@given(OBSERVATIONS, PEERS, TIMES, st.floats(0, 5), TIMES)
def test_whatever_was_seen_before_only_a_peer_with_a_sign_of_death_is_gone(
    seen: Observations, peers: list[Peer], asked: float, took: float, ahead: float
) -> None:
    judgement = judge(seen, Look(peers, asked, asked + took, ahead), LEASE)
    suspects = [each for each in peers if not each.connected or each.lapsed]
    assert {*judgement.gone} <= {each.id for each in suspects}
    if judgement.stalled is not None or asked - seen.doubted_at <= LEASE:
        assert judgement.gone == [], "nothing counts for a lease"
    away = {(each.id, each.lease_until) for each in peers if not each.connected}
    assert judgement.seen.missed.keys() <= away, "nothing is kept of peers that have left"
