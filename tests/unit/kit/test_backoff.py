"""Pauses between retries."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from turnstream.kit.backoff import backoff, jittered


def test_a_pause_doubles_up_to_its_longest() -> None:
    assert [backoff(failures, 0.5, 8.0) for failures in range(1, 8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert [backoff(failures, 5.0, 100.0, 4.0) for failures in range(1, 5)] == [5.0, 20.0, 80.0, 100.0]


@given(st.integers(1, 10**9), st.floats(1e-6, 60.0), st.floats(60.0, 1e6), st.floats(1.0, 10.0))
def test_a_backoff_never_shrinks_and_never_exceeds_its_longest(
    failures: int, first: float, longest: float, factor: float
) -> None:
    pause = backoff(failures, first, longest, factor)
    assert first <= pause <= backoff(failures + 1, first, longest, factor) <= longest


@given(st.floats(0.0, 1e6))
def test_chance_takes_half_of_it_at_most(pause: float) -> None:
    assert pause / 2 <= jittered(pause) <= pause
    assert pause * 0.8 <= jittered(pause, 0.8, 1.2) <= pause * 1.2


def test_the_server_has_no_other_back_off() -> None:
    """A pause that grows up to a maximum is written as a power inside of `min`, so the test searches for this form."""
    modules = [*(Path(__file__).parents[3] / "app/turnstream").rglob("*.py")]
    own = [path.name for path in modules if re.search(r"\bmin\([^\n]*\*\* ?[\w(]", path.read_text(encoding="utf-8"))]
    assert own == ["backoff.py"]
