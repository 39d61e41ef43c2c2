"""How the limits of a key are divided among replicas, and how the provider's headers are parsed."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnstream.extensions.rate_limits.allocation import (
    LEASE,
    KeyState,
    ShareRequest,
    exchange,
    from_row,
    new_state,
    to_row,
)
from turnstream.extensions.rate_limits.amounts import NONE, UNLIMITED, Amounts, RateLimits, need_of, report_of
from turnstream.extensions.rate_limits.fair_queue import FairQueue

LIMITS = RateLimits.per_minute(requests=600, input_tokens=60_000)
ONE = need_of(100, 10)


def wish(replica: str, spent: Amounts = NONE, need: Amounts = ONE, times: int = 1, **more: float) -> ShareRequest:
    wanted = Amounts(*(each * times for each in need))
    return ShareRequest(replica, LIMITS, spent, need, wanted, **more)  # type: ignore[arg-type]


def test_a_share_covers_the_needs_of_waiting_calls_for_a_second() -> None:
    state, grant = exchange(new_state(LIMITS, 0), wish("a", times=5), 0)
    assert (grant.held.requests, grant.held.input, grant.seconds) == (5, 500, 0)
    assert state.left[:2] == (595, 59_500)
    _, grant = exchange(new_state(LIMITS, 0), wish("a", times=500), 0)
    assert grant.held.requests == 10


def test_a_call_that_does_not_fit_gets_the_seconds_until_it_does() -> None:
    empty = KeyState(LIMITS, Amounts(0, 0, math.inf, math.inf), 0)
    _, grant = exchange(empty, wish("a", need=need_of(2000, 1)), 1.0)
    assert grant.held.input == 1000
    assert grant.seconds == pytest.approx(1.0)


def test_replicas_share_in_proportion_to_their_wanted_amounts() -> None:
    state = KeyState(LIMITS, Amounts(0, 0, math.inf, math.inf), 0)
    state, _ = exchange(state, wish("a", times=6), 0)
    state, _ = exchange(state, wish("b", times=2), 0)
    _, grant = exchange(state, wish("b", times=2), 0.4)
    assert grant.held.requests == pytest.approx(1.0)


def test_the_share_of_a_dead_replica_comes_back_with_its_lease() -> None:
    state = KeyState(LIMITS, Amounts(10, 1000, math.inf, math.inf), 0)
    state, held = exchange(state, wish("dead", times=10), 0)
    assert held.held.requests == 10
    before, _ = exchange(state, wish("a", need=NONE), LEASE - 0.01)
    after, _ = exchange(state, wish("a", need=NONE), LEASE)
    assert after.left.requests - before.left.requests == pytest.approx(10, abs=0.2)
    assert "dead" in before.shares
    assert "dead" not in after.shares


def test_a_report_after_the_end_of_a_lease_counts_once() -> None:
    state, _ = exchange(KeyState(LIMITS, Amounts(20, 9000, math.inf, math.inf), 0), wish("a", times=10), 0)
    # the lease of a has expired, which returns its ten requests
    state, _ = exchange(state, wish("b", need=NONE), LEASE)
    spent = need_of(100, 10)
    after, _ = exchange(state, wish("a", spent=spent, need=NONE), LEASE)
    assert state.left.requests - after.left.requests == 1


def test_a_refusal_keeps_all_replicas_away_until_the_provider_allows() -> None:
    state, grant = exchange(new_state(LIMITS, 0), wish("a", blocked=3.0), 0)
    assert (grant.held, grant.seconds) == (NONE, 3.0)
    state, grant = exchange(state, wish("b"), 1.0)
    assert (grant.held, grant.seconds) == (NONE, 2.0)
    _, grant = exchange(state, wish("b"), 3.0)
    assert grant.seconds == 0


def test_reports_of_headers_lower_the_bucket_and_never_fill_it() -> None:
    low = Amounts(3, math.inf, math.inf, math.inf)
    state, _ = exchange(new_state(LIMITS, 0), wish("a", need=NONE, remaining=low), 0)  # type: ignore[arg-type]
    assert state.left.requests == 3
    state, _ = exchange(state, wish("a", need=NONE, remaining=UNLIMITED), 0)  # type: ignore[arg-type]
    assert state.left.requests == 3


def test_a_clock_that_was_set_back_gains_nothing() -> None:
    state = KeyState(LIMITS, Amounts(0, 0, math.inf, math.inf), 100.0)
    state, grant = exchange(state, wish("a"), 40.0)
    assert (grant.held.requests, state.at) == (0, 100.0)


steps = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.floats(0.0, 3.0),
        st.integers(0, 40),
        st.integers(1, 4000),
        st.floats(0.0, 1.0),
        st.booleans(),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_replicas_never_hold_more_than_the_limits_allow(
    steps: list[tuple[str, float, int, int, float, bool]],
) -> None:
    """Together, living replicas never spend more than the capacity and what has been gained since the start."""
    start = Amounts(30, 5000, math.inf, math.inf)
    state, now = KeyState(LIMITS, start, 0), 0.0
    holds: dict[str, tuple[Amounts, float]] = {}
    spent_in_all = NONE
    for replica, pause, times, tokens, part, reports in steps:
        now += pause
        held, until = holds.get(replica, (NONE, 0.0))
        usable = held if now < until else NONE
        spent = Amounts(*(each * part if reports else 0.0 for each in usable[:2]))
        spent_in_all = spent_in_all.plus(spent)
        need = need_of(tokens, 0) if times else NONE
        state, grant = exchange(state, wish(replica, spent=spent, need=need, times=times), now)
        holds[replica] = (grant.held, now + 0.8 * LEASE)
        assert all(each >= 0 for each in grant.held)
        for place in (0, 1):
            assert spent_in_all[place] <= start[place] + LIMITS.rate[place] * now + 1e-6
        assert state == from_row(to_row(state))
        outstanding = [share.held for share in state.shares.values()]
        for place in (0, 1):
            assert state.left[place] + sum(each[place] for each in outstanding) <= LIMITS.capacity[place] + 1e-6


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=60))
def test_no_owner_waits_for_two_calls_of_another(owners: list[str]) -> None:
    queue: FairQueue[list[str]] = FairQueue()
    for owner in owners:
        queue.push(owner, [owner])
    served = list[str]()
    while (head := queue.head) is not None:
        assert queue.heads(3)[0] is head
        assert 0 <= queue.ahead_of(head[0], head) < len(queue)
        queue.remove(head[0], head)
        served.append(head[0])
    assert sorted(served) == sorted(owners)
    for owner in set(owners):
        places = [place for place, each in enumerate(served) if each == owner]
        for first, second in pairwise(places):
            between = served[first + 1 : second]
            assert all(between.count(each) <= 1 for each in set(between))


@pytest.mark.parametrize(
    ("headers", "capacity", "rate", "remaining"),
    [
        (
            {
                "anthropic-ratelimit-requests-limit": "50",
                "anthropic-ratelimit-requests-remaining": "49",
                "anthropic-ratelimit-input-tokens-limit": "30000",
                "anthropic-ratelimit-input-tokens-remaining": "29000",
                "anthropic-ratelimit-output-tokens-limit": "8000",
                "anthropic-ratelimit-tokens-limit": "38000",
            },
            (50, 30_000, 8000, math.inf),
            (50 / 60, 500, 8000 / 60, math.inf),
            (49, 29_000, math.inf, math.inf),
        ),
        (
            {
                "x-ratelimit-limit-requests": "14400",
                "x-ratelimit-remaining-requests": "14370",
                "x-ratelimit-reset-requests": "2m59.56s",
                "x-ratelimit-limit-tokens": "18000",
                "x-ratelimit-remaining-tokens": "17900",
                "x-ratelimit-reset-tokens": "333ms",
            },
            (14_400, math.inf, math.inf, 18_000),
            (14_400 / 86_400, math.inf, math.inf, 300),
            (14_370, math.inf, math.inf, 17_900),
        ),
        (
            {"x-ratelimit-limit-requests": "60", "x-ratelimit-reset-requests": "Sun, 29 Nov 2026 00:00:00 GMT"},
            (60, math.inf, math.inf, math.inf),
            (1, math.inf, math.inf, math.inf),
            (math.inf,) * 4,
        ),
    ],
)
def test_headers_give_limits(
    headers: dict[str, str], capacity: tuple[float, ...], rate: tuple[float, ...], remaining: tuple[float, ...]
) -> None:
    report = report_of(headers)
    assert report is not None
    assert report.limits.capacity == capacity
    assert report.limits.rate == pytest.approx(rate)
    assert report.remaining == remaining


@pytest.mark.parametrize("value", ["", "many", "-1", "nan", "inf", "0"])
def test_headers_without_a_number_give_no_limit(value: str) -> None:
    assert report_of({"x-ratelimit-limit-requests": value}) is None
    assert report_of({"anthropic-ratelimit-requests-limit": value}) is None


def test_the_lower_of_two_limits_holds() -> None:
    stated = RateLimits.per_minute(requests=30)
    assert stated.stricter(RateLimits.per_minute(requests=60, tokens=6)).capacity == (30, math.inf, math.inf, 6)
