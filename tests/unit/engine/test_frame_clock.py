"""The frame clock makes streams wait for a common tick, limits the wait, and releases every stream."""

import asyncio
from collections.abc import Callable

import pytest

from turnstream.engine.frame_clock import BEATS, BUSY, IDLE, TICK, FrameClock


def pressed() -> FrameClock:
    """Returns the clock of a fully loaded process."""
    clock = FrameClock()
    for _ in range(40):
        clock.observe(1.0)
    return clock


async def test_calm_streams_do_not_wait() -> None:
    clock = FrameClock()
    clock.observe(0.2)
    breath = clock.wait_for_tick()
    try:
        breath.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


def observed(clock: FrameClock, busy: float) -> float:
    """Returns the tick after the clock has observed this load for four seconds."""
    for _ in range(40):
        clock.observe(busy)
    return clock.tick


def test_there_is_no_tick_below_the_load_that_makes_one_worth_its_latency() -> None:
    clock = FrameClock()
    assert observed(clock, BUSY - 0.05) == 0.0
    clock.observe(1.0)
    assert clock.tick == TICK, "near the limit one sample is enough"
    assert observed(FrameClock(), IDLE - 0.05) == 0.0


def test_a_tick_stays_while_the_tick_itself_lowers_the_load() -> None:
    clock = pressed()
    assert clock.tick == TICK
    assert observed(clock, IDLE + 0.05) == TICK
    assert observed(clock, IDLE - 0.05) == 0.0
    assert observed(clock, BUSY - 0.05) == 0.0


def test_an_operator_may_choose_latency_or_cpu_whatever_the_load() -> None:
    assert [observed(FrameClock("calm"), busy) for busy in (0.1, 1.0)] == [0.0, 0.0]
    assert [observed(FrameClock("cheap"), busy) for busy in (0.1, 1.0)] == [TICK, TICK]


async def test_streams_of_one_beat_continue_together_and_a_tick_has_several_beats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, order = pressed(), list[str]()
    strikes: list[Callable[[], None]] = []
    delays: list[float] = []

    def later(delay: float, strike: Callable[[], None]) -> None:
        delays.append(delay)
        strikes.append(strike)

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", later)

    async def stream(name: str) -> None:
        for _ in range(3):
            await clock.wait_for_tick()
            order.append(name)

    async def beat() -> None:
        strikes.pop()()
        for _ in range(3):  # the notification reaches the stream, and the stream reaches its next wait
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as streams:
        for name in ("a", "b"):
            for _ in range(2):
                streams.create_task(stream(name))
            await asyncio.sleep(0)
            await beat()
        while strikes:
            await beat()
    assert order == ["a", "a", "b", "b"] * 3
    assert sum(delays[:BEATS]) == pytest.approx(clock.tick)


async def test_a_cancelled_stream_or_a_falling_load_keeps_no_stream_waiting() -> None:
    clock = pressed()
    gone = asyncio.create_task(clock.wait_for_tick())
    stays = asyncio.create_task(clock.wait_for_tick())
    await asyncio.sleep(0)
    gone.cancel()
    clock.tick = 0.0
    await stays
    assert gone.cancelled()
