import os
from concurrent.futures import ThreadPoolExecutor
from uuid import RFC_4122

import pytest

from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id


def test_an_id_is_a_uuid_of_version_7() -> None:
    before = int(CLOCK.seconds() * 1000)
    made = [new_id() for _ in range(100)]
    after = int(CLOCK.seconds() * 1000)
    for identity in made:
        assert identity.version == 7
        assert identity.variant == RFC_4122
        assert before <= identity.int >> 80 <= after + 1, "the first 48 bits are the time in milliseconds"


def test_ids_grow_strictly_even_within_a_millisecond() -> None:
    made = [new_id() for _ in range(20_000)]
    assert made == sorted(set(made))
    assert sorted(map(str, made)) == list(map(str, made)), "their text sorts as they do"


def test_ids_of_several_threads_are_all_different_and_grow_in_each() -> None:
    def make(_: int) -> list[int]:
        return [new_id().int for _ in range(2_000)]

    with ThreadPoolExecutor(8) as threads:
        lots = list(threads.map(make, range(8)))
    assert all(lot == sorted(lot) for lot in lots)
    assert len({identity for lot in lots for identity in lot}) == 16_000


def test_ids_grow_though_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id()
    monkeypatch.setattr(CLOCK, "seconds", lambda: 0.0)
    first, second = new_id(), new_id()
    assert before < first < second
    assert (first.version, first.variant) == (7, RFC_4122)


def test_the_largest_chance_and_the_next_id_after_it_stay_in_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: b"\xff" * size)
    first, second = new_id(), new_id()
    assert first < second
    assert {first.version, second.version} == {7}
    assert {first.variant, second.variant} == {RFC_4122}
