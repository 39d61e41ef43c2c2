"""The ticks that a rule generates: by cron in a time zone, by an interval, and after a pause."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from turnstream.domain.errors import RequestRefused
from turnstream.extensions.schedules.rules import MOST_COUNTED, PORTION, Rule, due_at, shortest, zone_of

BERLIN = "Europe/Berlin"


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _ticks(rule: Rule, after: str, count: int) -> list[str]:
    ticks = rule.ticks(_at(after))
    return [f"{next(ticks):%d %H:%M}" for _ in range(count)]


def test_a_daily_tick_keeps_its_local_hour_when_clocks_change() -> None:
    assert _ticks(Rule("30 7 * * *", None, BERLIN), "2026-03-27T12:00", 3) == ["28 06:30", "29 05:30", "30 05:30"]


def test_a_tick_in_the_hour_that_does_not_exist_comes_at_its_end() -> None:
    """On 29 March 2026, at 01:00 UTC, the clock of Berlin is set from 02:00 to 03:00."""
    assert _ticks(Rule("30 2 * * *", None, BERLIN), "2026-03-28T12:00", 2) == ["29 01:00", "30 00:30"]


def test_a_tick_in_the_hour_that_comes_twice_comes_once() -> None:
    """On 25 October 2026, at 01:00 UTC, the clock of Berlin is set from 03:00 to 02:00."""
    assert _ticks(Rule("30 2 * * *", None, BERLIN), "2026-10-24T12:00", 2) == ["25 00:30", "26 01:30"]


@pytest.mark.parametrize("day", ["2026-03-28T22:00", "2026-10-24T22:00"])
def test_a_tick_of_every_ten_minutes_comes_at_even_pauses_on_the_days_of_the_change(day: str) -> None:
    ticks = Rule("*/10 * * * *", None, BERLIN).ticks(_at(day))
    found = [next(ticks) for _ in range(50)]
    assert {after - before for before, after in pairwise(found)} == {timedelta(minutes=10)}


def test_ticks_within_the_grace_all_run_and_none_twice() -> None:
    now = _at("2026-11-27T00:00:10")
    due = due_at(Rule(None, 1, "UTC"), _at("2026-11-27T00:00:00"), now, 60)
    assert (len(due.run), due.missed, due.next) == (11, 0, now + timedelta(seconds=1))


def test_a_long_pause_is_run_in_portions() -> None:
    first = _at("2026-11-27T00:00:00")
    found: list[datetime] = []
    tick, now = first, first + timedelta(seconds=200)
    while tick <= now:
        due = due_at(Rule(None, 1, "UTC"), tick, now, 3600)
        assert len(due.run) <= PORTION
        found += due.run
        tick = due.next
    assert found == [first + timedelta(seconds=second) for second in range(201)]


@pytest.mark.parametrize("rule", [Rule(None, 60, "UTC"), Rule("* * * * *", None, BERLIN)])
def test_ticks_beyond_the_grace_are_missed_together(rule: Rule) -> None:
    first = _at("2026-11-27T00:00:00")
    due = due_at(rule, first, first + timedelta(minutes=10, seconds=1), 120)
    assert due.missed == 9
    assert due.last_missed == first + timedelta(minutes=8)
    assert due.run == (first + timedelta(minutes=9), first + timedelta(minutes=10))


@pytest.mark.parametrize("rule", [Rule(None, 1, "UTC"), Rule("* * * * *", None, "UTC")])
def test_missed_ticks_of_years_are_not_walked_over(rule: Rule) -> None:
    first = _at("2020-01-01T00:00:00")
    due = due_at(rule, first, _at("2026-11-27T00:00:00"), 60)
    assert due.missed == MOST_COUNTED + 1
    assert due.run[0] >= _at("2026-11-26T23:59:00")


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (Rule("61 * * * *", None, "UTC"), "cron"),
        (Rule("0 0 30 2 *", None, "UTC"), "cron"),
        (Rule("* * * * *", None, "Mars/Olympus"), "zone"),
        (Rule("* * * * *", None, "../etc"), "zone"),
    ],
)
def test_a_rule_that_has_no_ticks_is_refused_with_its_field(rule: Rule, field: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        rule.first(_at("2026-11-27T00:00:00"))
    assert refused.value.field == field


def test_the_shortest_pause_of_a_cron_rule_is_found() -> None:
    assert shortest(Rule("0,1 * * * *", None, "UTC"), _at("2026-11-27T00:00:00")) == 60
    assert zone_of("UTC").key == "UTC"
