"""The decision that a replica is gone: a function of what another one has seen of it. It reads no clock and no row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from uuid import UUID

LOOK = 0.4  # seconds between two looks at the peers
# Seconds without a session after which a peer is gone, unless the sessions of all replicas were cut, or it renews its
# lease at each look: it lives, and cannot open one.
MISSED = 0.8


@dataclass(frozen=True, slots=True)
class Peer:
    """Another replica. `connected`: its session is alive. `lapsed`: its lease has expired. `has_own_address`: its
    address is this replica's. It is an earlier process, or two servers share a host name and a port.
    """

    id: UUID
    connected: bool
    lapsed: bool
    has_own_address: bool
    lease_until: datetime
    address: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """One read of the peers' rows. Times are seconds of this replica's monotonic clock; the clock of Postgres is
    `ahead` of this clock.
    """

    peers: Sequence[Peer]
    asked: float
    answered: float
    ahead: float


@dataclass(frozen=True, slots=True)
class Observations:
    """The observations of a replica until its last look, in the times of `Look`. Expired leases count a lease after
    `reachable_since`; nothing counts until a lease after `doubted_at`. `missed`: since when a peer with this end of its
    lease has had no session.
    """

    looked: float = -inf
    ahead: float = -inf
    reachable_since: float = -inf
    doubted_at: float = -inf
    missed: Mapping[tuple[UUID, datetime], float] = field(default_factory=dict)

    def unreachable(self, now: float) -> "Observations":
        """Postgres could not be asked until now. The peers could not renew their leases either."""
        return replace(self, looked=now, reachable_since=now, missed={})

    def doubted(self, now: float) -> "Observations":
        """Something has stopped all replicas alike, or cut all their sessions. They need time to come back."""
        return replace(self, reachable_since=now, doubted_at=now, missed={})


@dataclass(frozen=True, slots=True)
class Judgement:
    """The peers that are `gone`. `stalled`: the seconds of a stop, or of a step of the clock, that raised doubts."""

    gone: Sequence[UUID]
    seen: Observations
    stalled: float | None = None


def predecessors(peers: Sequence[Peer]) -> Sequence[UUID]:
    """Returns the earlier processes at this replica's address that have no session any more. This replica takes over
    their turns when it starts. A process that has a session may be a running server with the same address.
    """
    return [peer.id for peer in peers if peer.has_own_address and not peer.connected]


def judge(seen: Observations, look: Look, lease: float) -> Judgement:
    """A peer is gone when it has had no session for long enough, or its lease of `lease` seconds has expired. After
    an outage of Postgres, all leases look expired for a while, although the peers run.
    """
    late, jump = look.answered - seen.looked, look.ahead - seen.ahead
    # Postgres, this machine or this process stood still, so the peers were perhaps kept from renewing too; or the
    # clock of Postgres was set forward, so all leases look expired until they are renewed.
    stalled = max(late, jump) if late > LOOK + lease / 3 or jump > lease / 3 else None
    if stalled is not None:
        seen = seen.doubted(look.answered)
    peers = look.peers if look.asked - seen.doubted_at > lease else ()
    absent = [(peer.id, peer.lease_until) for peer in peers if not peer.connected]
    missed = {each: seen.missed.get(each, look.answered) for each in absent}
    leases_count = look.asked - seen.reachable_since > lease
    gone = [
        peer.id
        for peer in peers
        if (leases_count and peer.lapsed) or look.asked - missed.get((peer.id, peer.lease_until), inf) >= MISSED
    ]
    return Judgement(gone, replace(seen, looked=look.answered, ahead=look.ahead, missed=missed), stalled)
