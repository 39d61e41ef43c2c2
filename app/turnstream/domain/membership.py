"""Decides whether a replica is dead: a function of another replica's observations, which reads no clock and no rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from uuid import UUID

LOOK = 0.4  # seconds between two reads of the peers
# A peer that has no session for so many seconds is dead, unless the sessions of all replicas were cut, or the peer has
# renewed its lease at each read: such a peer lives, but cannot open a session.
MISSED = 0.8


@dataclass(frozen=True, slots=True)
class Peer:
    """Another replica. `connected`: its session is alive. `lapsed`: its lease has expired. `has_own_address`: the peer
    has the address of this replica, so it is an earlier process, or two servers share a host name and a port.
    """

    id: UUID
    connected: bool
    lapsed: bool
    has_own_address: bool
    lease_until: datetime
    address: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """One read of the peers' rows. Times are in monotonic seconds; the clock of Postgres is `ahead` seconds ahead."""

    peers: Sequence[Peer]
    asked: float
    answered: float
    ahead: float


@dataclass(frozen=True, slots=True)
class Observations:
    """The observations of a replica up to its last read, in the times of `Look`. Expired leases count only after one
    lease time since `reachable_since`. No observation counts before one lease time after `doubted_at`. `missed` maps a
    peer and the present end of its lease to the time since which the peer has had no session.
    """

    looked: float = -inf
    ahead: float = -inf
    reachable_since: float = -inf
    doubted_at: float = -inf
    missed: Mapping[tuple[UUID, datetime], float] = field(default_factory=dict)

    def unreachable(self, now: float) -> "Observations":
        """Returns the observations after Postgres was unreachable until `now`, so that no lease could be renewed."""
        return replace(self, looked=now, reachable_since=now, missed={})

    def doubted(self, now: float) -> "Observations":
        """Returns the observations after one cause stopped all replicas, or cut all their sessions. For a while, no
        observation counts, because the replicas need time to recover.
        """
        return replace(self, reachable_since=now, doubted_at=now, missed={})


@dataclass(frozen=True, slots=True)
class Judgement:
    """`gone` has the dead peers. `stalled`: seconds of a pause or a clock step, after which no judgement is safe."""

    gone: Sequence[UUID]
    seen: Observations
    stalled: float | None = None


def predecessors(peers: Sequence[Peer]) -> Sequence[UUID]:
    """Returns the earlier processes at this replica's address that have no session. This replica takes over their turns
    when it starts. A process with a session may be a running server with the same address.
    """
    return [peer.id for peer in peers if peer.has_own_address and not peer.connected]


def judge(seen: Observations, look: Look, lease: float) -> Judgement:
    """Finds the dead peers: peers without a session for some time, and peers whose lease of `lease` seconds has
    expired. After an outage of Postgres, all leases look expired for a while, although the peers run.
    """
    late, jump = look.answered - seen.looked, look.ahead - seen.ahead
    # Postgres, this machine or this process has paused, so perhaps the peers could not renew their leases. Or the clock
    # of Postgres was set forward, so all leases look expired until they are renewed.
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
