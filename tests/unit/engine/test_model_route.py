"""Breakers of models: the failures that a breaker counts, the retries, and the number of stored breakers."""

import asyncio

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from turnstream.domain.errors import PermanentError, TooLong, TransientError
from turnstream.engine import model_route
from turnstream.engine.model_route import ModelBreakers, ModelPolicy

DOWN = TransientError("overloaded_error", "Overloaded")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fail(breakers: ModelBreakers, error: BaseException, model: str = "m", times: int = 1, owner: str = "ada") -> None:
    for _ in range(times):
        with pytest.raises(type(error)), breakers.call("p", model, owner):
            raise error


@pytest.mark.parametrize(
    "error",
    [
        PermanentError("invalid_request_error", "No."),
        TooLong("context_length_exceeded", "No."),
        TransientError("tool_use_failed", "No."),
        TransientError("no_summary", "No."),
        asyncio.CancelledError(),
        RuntimeError(),
    ],
)
def test_only_failures_of_the_provider_count(error: BaseException, clock: Clock) -> None:
    breakers = ModelBreakers(ModelPolicy(breaker=3), clock)
    fail(breakers, DOWN, times=2)
    fail(breakers, error, times=5)
    assert not breakers.is_open("p", "m", "ada")
    fail(breakers, DOWN)
    assert breakers.is_open("p", "m", "ada")


def test_a_success_in_between_starts_the_count_again_and_each_model_has_its_own(clock: Clock) -> None:
    breakers = ModelBreakers(ModelPolicy(breaker=2), clock)
    fail(breakers, DOWN)
    with breakers.call("p", "m", "ada"):
        pass
    fail(breakers, DOWN)
    fail(breakers, DOWN, "other", times=2)
    assert not breakers.is_open("p", "m", "ada")
    assert breakers.is_open("p", "other", "ada")
    assert not breakers.is_open("q", "other", "ada")


def test_a_single_call_at_a_time_probes_and_closes_the_breaker(clock: Clock) -> None:
    breakers = ModelBreakers(ModelPolicy(breaker=1, breaker_pause=30, label=str), clock)

    def shown() -> float | None:
        return REGISTRY.get_sample_value("turnstream_model_breaker_open", {"provider": "p", "model": "m"})

    with capture_logs() as logged:
        fail(breakers, DOWN)
        assert (breakers.is_open("p", "m", "ada"), shown()) == (True, 1)
        clock.now += 30
        assert not breakers.is_open("p", "m", "ada")
        with breakers.call("p", "m", "ada"):
            assert breakers.is_open("p", "m", "ada"), "for all others"
        assert (breakers.is_open("p", "m", "ada"), shown()) == (False, 0)
    assert [line["event"] for line in logged] == ["model.breaker_open", "model.breaker_closed"]
    fail(breakers, DOWN)
    clock.now += 30
    fail(breakers, DOWN)
    assert breakers.is_open("p", "m", "ada"), "the trial failed"


def test_a_breaker_can_be_switched_off(clock: Clock) -> None:
    breakers = ModelBreakers(ModelPolicy(breaker=None), clock)
    fail(breakers, DOWN, times=100)
    assert not breakers.is_open("p", "m", "ada")


def test_only_so_many_are_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_route, "_MOST_BREAKERS", 2)
    breakers = ModelBreakers(ModelPolicy(breaker=1), clock)
    for model in "abc":
        fail(breakers, DOWN, model)
    assert [breakers.is_open("p", model, "ada") for model in "abc"] == [False, True, True]


def test_failures_of_one_owner_keep_nobody_else_from_the_model_and_those_of_several_do(clock: Clock) -> None:
    breakers = ModelBreakers(ModelPolicy(breaker=6, label=str), clock)
    fail(breakers, DOWN, times=20, owner="eve")
    assert (breakers.is_open("p", "m", "eve"), breakers.is_open("p", "m", "ada")) == (True, False)
    with breakers.call("p", "m", "ada"):
        assert breakers.is_open("p", "m", "eve"), "the success of another owner says nothing of the inputs of this one"
    for owner in ("ben", "cid", "dan"):
        assert not breakers.is_open("p", "m", "ada")
        fail(breakers, DOWN, times=2, owner=owner)
    assert breakers.is_open("p", "m", "ada")
