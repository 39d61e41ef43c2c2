"""Breakers of models: what counts, who tries again, how many are kept."""

import asyncio

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from app.domain.errors import PermanentError, TooLong, TransientError
from app.engine import model_route
from app.engine.model_route import ModelBreakers, ModelPolicy

DOWN = TransientError("overloaded_error", "Overloaded")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fail(breakers: ModelBreakers, error: BaseException, model: str = "m", times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(type(error)), breakers.call("p", model):
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
    assert not breakers.is_open("p", "m")
    fail(breakers, DOWN)
    assert breakers.is_open("p", "m")


def test_a_success_in_between_starts_the_count_again_and_each_model_has_its_own(clock: Clock) -> None:
    breakers = ModelBreakers(ModelPolicy(breaker=2), clock)
    fail(breakers, DOWN)
    with breakers.call("p", "m"):
        pass
    fail(breakers, DOWN)
    fail(breakers, DOWN, "other", times=2)
    assert not breakers.is_open("p", "m")
    assert breakers.is_open("p", "other")
    assert not breakers.is_open("q", "other")


def test_one_call_at_a_time_tries_again_and_closes_the_breaker(clock: Clock) -> None:
    breakers = ModelBreakers(ModelPolicy(breaker=1, breaker_pause=30, label=str), clock)

    def shown() -> float | None:
        return REGISTRY.get_sample_value("turnstream_model_breaker_open", {"provider": "p", "model": "m"})

    with capture_logs() as logged:
        fail(breakers, DOWN)
        assert (breakers.is_open("p", "m"), shown()) == (True, 1)
        clock.now += 30
        assert not breakers.is_open("p", "m")
        with breakers.call("p", "m"):
            assert breakers.is_open("p", "m"), "for all others"
        assert (breakers.is_open("p", "m"), shown()) == (False, 0)
    assert [line["event"] for line in logged] == ["model.breaker_open", "model.breaker_closed"]
    fail(breakers, DOWN)
    clock.now += 30
    fail(breakers, DOWN)
    assert breakers.is_open("p", "m"), "the trial failed"


def test_a_breaker_can_be_switched_off(clock: Clock) -> None:
    breakers = ModelBreakers(ModelPolicy(breaker=None), clock)
    fail(breakers, DOWN, times=100)
    assert not breakers.is_open("p", "m")


def test_only_so_many_are_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_route, "_MOST_BREAKERS", 2)
    breakers = ModelBreakers(ModelPolicy(breaker=1), clock)
    for model in "abc":
        fail(breakers, DOWN, model)
    assert [breakers.is_open("p", model) for model in "abc"] == [False, True, True]
