"""Divides a key's limits among replicas. Pure: each exchange computes the next state.

A state is a token bucket, and the shares that replicas have reserved in it. A replica spends its share without an
exchange. Then the replica reports the amount that it has spent, and reserves another share.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnstream.extensions.rate_limits.amounts import NONE, UNLIMITED, Amounts, RateLimits

# Seconds for which a share is reserved. A dead replica's share returns to the bucket after this time.
LEASE = 10.0
# A replica may reserve at most the amount that the rate adds in so many seconds, but always the need of its next call.
_AHEAD = 1.0
_SHORTEST, _LONGEST = 0.02, 2.0  # seconds between two exchanges of a replica with waiting calls


@dataclass(frozen=True, slots=True)
class Share:
    """The amounts that a replica has reserved until a time, and the amounts that it wanted."""

    held: Amounts
    wanted: Amounts
    until: float


@dataclass(frozen=True, slots=True)
class KeyState:
    """The state of a key for all replicas. The bucket has `left` at the time `at`. No call may start before
    `blocked_until`. The store's clock measures all times.
    """

    limits: RateLimits
    left: Amounts
    at: float
    blocked_until: float = 0.0
    shares: Mapping[str, Share] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """A replica's report and request. `spent` is the amount that its calls have used since the last exchange; negative
    if the calls used less than assumed. `need` is the need of its next call, `wanted` the need of all its waiting
    calls. `remaining` is the lowest amount that headers have reported, and `blocked` is the wait in seconds that the
    provider requested.
    """

    replica: str
    limits: RateLimits
    spent: Amounts = NONE
    need: Amounts = NONE
    wanted: Amounts = NONE
    remaining: Amounts = UNLIMITED
    blocked: float = 0.0


@dataclass(frozen=True, slots=True)
class GrantedShare:
    """The new share, the part of the limits that is still in the bucket, and the seconds until the next call can start
    (0: now). `rate` is the amount per second that this replica may expect.
    """

    held: Amounts
    left: float
    seconds: float
    rate: Amounts


def new_state(limits: RateLimits, now: float) -> KeyState:
    return KeyState(limits, limits.capacity, now)


def exchange(state: KeyState, wish: ShareRequest, now: float) -> tuple[KeyState, GrantedShare]:
    """Applies a report, and grants a share: the unspent rest of the replica's old share, and a part of the bucket in
    proportion to the amounts that all replicas want.
    """
    now = max(now, state.at)  # a clock that was set back adds nothing
    capacity, rate = wish.limits.capacity, wish.limits.rate
    own = state.shares.get(wish.replica)
    others = {name: share for name, share in state.shares.items() if name != wish.replica and share.until > now}
    taken_back = [share.held for name, share in state.shares.items() if name not in others]
    outstanding = _sum(share.held for share in others.values())
    left = _finite(state.left, capacity).plus(_sum(taken_back)).plus(wish.spent, -1)
    left = left.plus(_gain(rate, now - state.at)).least(capacity.plus(outstanding, -1)).least(wish.remaining)
    blocked_until = max(state.blocked_until, now + wish.blocked if wish.blocked > 0 else 0.0)
    wanted = wish.need.most(wish.wanted.least(rate_for(rate, _AHEAD)))
    everything = wanted.plus(_sum(share.wanted for share in others.values()))
    part = Amounts(*(mine / all if all > 0 else 0.0 for mine, all in zip(wanted, everything, strict=True)))
    kept = NONE if own is None or own.until <= now else own.held.plus(wish.spent, -1).most(NONE)
    held = NONE if blocked_until > now else _granted(left, kept, wanted, part)
    shares = others if wanted == NONE else {**others, wish.replica: Share(held, wanted, now + LEASE)}
    left = left.plus(held, -1)
    after = KeyState(wish.limits, left, now, blocked_until, shares)
    expected = Amounts(*(each * share if share else 0.0 for each, share in zip(rate, part, strict=True)))
    wait = _seconds(held, wish.need, expected, max(0.0, blocked_until - now))
    return after, GrantedShare(held, _fraction(left, capacity), wait, expected)


def rate_for(rate: Amounts, seconds: float) -> Amounts:
    return Amounts(*(each * seconds for each in rate))


def _granted(left: Amounts, kept: Amounts, wanted: Amounts, part: Amounts) -> Amounts:
    """Returns the kept part of the old share plus this replica's part of the rest, but never more than is left or
    wanted.
    """
    found = []
    for mine, rest, most, share in zip(kept, left, wanted, part, strict=True):
        kept_now = max(0.0, min(mine, rest))
        found.append(max(0.0, min(most, kept_now + max(0.0, rest - kept_now) * share)))
    return Amounts(*found)


def _seconds(held: Amounts, need: Amounts, rate: Amounts, blocked: float) -> float:
    """Returns the seconds until the share covers the need, if nothing else changes."""
    if blocked:
        return blocked
    if held.covers(need):
        return 0.0
    waits = [(its - mine) / gain for mine, its, gain in zip(held, need, rate, strict=True) if its > mine and gain > 0]
    return max(waits, default=_LONGEST)


def pause_before(seconds: float) -> float:
    """Returns the seconds until the next exchange of a replica whose next call starts in `seconds`."""
    return max(_SHORTEST, min(_LONGEST, seconds))


def _gain(rate: Amounts, seconds: float) -> Amounts:
    return Amounts(*(each * seconds if math.isfinite(each) else math.inf for each in rate))


def _sum(several: Iterable[Amounts]) -> Amounts:
    total = NONE
    for each in several:
        total = total.plus(each)
    return total


def _finite(left: Amounts, capacity: Amounts) -> Amounts:
    return Amounts(*(full if math.isinf(each) else each for each, full in zip(left, capacity, strict=True)))


def _fraction(left: Amounts, capacity: Amounts) -> float:
    parts = [mine / most for mine, most in zip(left, capacity, strict=True) if math.isfinite(most)]
    return min(parts, default=1.0)


# --- the form in which a store keeps a state --------------------------------------------------------------------------


def to_row(state: KeyState) -> dict[str, Any]:
    """Returns the state as JSON values. An infinite amount becomes null."""
    return {
        "capacity": _json(state.limits.capacity),
        "rate": _json(state.limits.rate),
        "left": _json(state.left),
        "at": state.at,
        "blocked_until": state.blocked_until,
        "shares": {name: [_json(share.held), _json(share.wanted), share.until] for name, share in state.shares.items()},
    }


def from_row(row: Mapping[str, Any]) -> KeyState:
    shares = {
        name: Share(_amounts(held), _amounts(wanted), until) for name, (held, wanted, until) in row["shares"].items()
    }
    limits = RateLimits(_amounts(row["capacity"]), _amounts(row["rate"]))
    return KeyState(limits, _amounts(row["left"]), row["at"], row["blocked_until"], shares)


def _json(amounts: Amounts) -> list[float | None]:
    return [each if math.isfinite(each) else None for each in amounts]


def _amounts(values: list[float | None]) -> Amounts:
    return Amounts(*(math.inf if each is None else each for each in values))
