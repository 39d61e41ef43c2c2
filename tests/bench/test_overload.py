"""The figures of the overload trial: lost text fails the trial, and recovery has a definition."""

from dataclasses import replace

import pytest

from tests.bench.load import LoadResult, Times
from tests.bench.overload import Overloaded, Probe, recovered_at, rows
from tests.bench.scenarios import FaultError
from tests.bench.test_hostile import CALM

TIMES = Times(count=900, p50=20.0, p99=300.0, max=400.0)
LOAD = replace(
    CALM,
    completed=900,
    wall_seconds=13.0,
    accepted=TIMES,
    refusal=TIMES,
    first_delta=TIMES,
    refused={"503 overloaded": (300, 300), "429 queued_turns": (100, 99)},
)
BEFORE = [Probe(0.0, first_token) for first_token in (20.0, 30.0, 25.0)]


def probes(*first_tokens: float | None) -> list[Probe]:
    """Returns one probe per second. The first probe starts a second before the end of the arrivals."""
    return [Probe(9.0 + number, first_token) for number, first_token in enumerate(first_tokens)]


OVERLOADED = Overloaded(10, 60.0, 120.0, LOAD, 10.0, BEFORE, probes(500.0, 90.0, 30.0, 20.0, 25.0))


def test_refusals_are_shown_by_reason_with_the_share_of_those_that_name_a_time() -> None:
    figures = {measure: figure for measure, (figure, *_) in rows(OVERLOADED).items()}
    expected = {
        "refused": 400,
        "refused as `503 overloaded`": 300,
        "refusals with `Retry-After`, %": 99.75,
        "until the last accepted turn has ended, s": 3.0,
        "until a first token is as fast as before, s": 1.0,
        "another owner meanwhile, longest, ms": 500.0,
    }
    assert figures | expected == figures


def test_a_load_that_nobody_refused_has_no_share() -> None:
    assert rows(replace(OVERLOADED, load=replace(LOAD, refused={})))["refusals with `Retry-After`, %"] == (None, 100.0)


@pytest.mark.parametrize(
    "flawed",
    [
        replace(LOAD, lost=1),
        replace(LOAD, repeated=1),
        replace(LOAD, disordered=1),
        replace(LOAD, foreign=1),
        replace(LOAD, resets=1),
    ],
)
def test_a_text_that_is_not_whole_fails_the_trial(flawed: LoadResult) -> None:
    with pytest.raises(FaultError, match="1"):
        rows(replace(OVERLOADED, load=flawed))


def test_a_server_has_recovered_when_three_probes_in_a_row_are_as_fast_as_before() -> None:
    assert recovered_at(probes(20.0, 20.0, 20.0), 10.0, 30.0) is None  # the first probe started before that end
    assert recovered_at(probes(20.0, 20.0, 20.0, 20.0), 10.0, 30.0) == 0.0
    assert recovered_at(probes(20.0, 40.0, 20.0, 20.0, None, 30.0, 30.0, 30.0), 10.0, 30.0) == 4.0
