from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest

from turnstream.kit.clock import DatabaseClock

HOUR = timedelta(hours=1)


def test_before_postgres_has_answered_it_is_the_time_of_this_machine() -> None:
    before, read, after = datetime.now(UTC), DatabaseClock().now(), datetime.now(UTC)
    assert before - timedelta(seconds=1) < read < after + timedelta(seconds=1)


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_an_answer_of_postgres_sets_it_to_within_the_time_that_the_answer_took(skew: timedelta) -> None:
    clock, asked = DatabaseClock(), monotonic()
    at = datetime.now(UTC) + skew
    clock.learn(at, asked, asked + 0.25)
    off = abs(clock.seconds() - monotonic() + asked - at.timestamp())
    assert off <= 0.25 + 1e-6


def test_a_slow_answer_that_agrees_does_not_move_it() -> None:
    clock, asked = DatabaseClock(), monotonic()
    at = datetime.now(UTC) + HOUR
    clock.learn(at, asked, asked)
    learned = clock.seconds() - monotonic()
    # The read took 30 s and began at `asked`, so Postgres may have read its clock 3 s after `asked`.
    clock.learn(at + timedelta(seconds=3), asked, asked + 30)
    assert clock.seconds() - monotonic() == pytest.approx(learned, abs=0.01)


def test_a_time_that_the_clock_has_shown_twice_is_in_no_order() -> None:
    clock, noon = DatabaseClock(), datetime(2026, 1, 1, 12, tzinfo=UTC)
    minutes = [noon + timedelta(minutes=each) for each in range(60)]
    clock.learn_steps([(minutes[10], minutes[20]), (minutes[15], minutes[30])])  # the clock was set back twice
    assert [clock.in_order(minutes[each]) for each in (0, 10, 12, 17, 25, 30, 59)] == [
        minutes[each] for each in (0, 10, 10, 10, 10, 30, 59)
    ]
