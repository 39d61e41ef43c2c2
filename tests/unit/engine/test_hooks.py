"""Hooks run in their order, and a failing hook does not affect its turn."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from turnstream.domain.blocks import Block
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn
from turnstream.engine.hooks import (
    AfterRound,
    AfterTool,
    BeforeAttempt,
    BeforeTool,
    HookRunner,
    Hooks,
    OutputRejected,
    TurnEnded,
)
from turnstream.tools.tool import Outcome

AT_ONCE = 0.01
TURN = Turn(UUID(int=1), UUID(int=2), UUID(int=3), "assistant", "running")
CALL = Block(0, 1, 1, "tool_use", "{}", tool_use_id="toolu_1", name="look")
ENDED = TurnEnded("ada", TURN)


class Listener(Hooks):
    """Records the events of ended turns, and runs `act` at each event."""

    def __init__(self, events: list[object], act: Callable[[], Awaitable[object]] | None = None) -> None:
        self._events = events
        self._act = act

    async def turn_ended(self, event: TurnEnded) -> None:
        self._events.append(event)
        if self._act is not None:
            await self._act()
            self._events.append("done")


async def raises() -> None:
    raise LookupError("no such thing")


async def exits() -> None:
    sys.exit("enough")


async def is_cancelled() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def hangs() -> None:
    await asyncio.Event().wait()


async def ignores_a_cancellation() -> None:
    """Ignores its first cancellation."""
    try:
        await hangs()
    except asyncio.CancelledError:
        await hangs()


def failures(hook: str = "turn_ended") -> float:
    return REGISTRY.get_sample_value("turnstream_hook_failures_total", {"hook": hook}) or 0


async def test_every_hook_gets_the_event_in_the_order_given() -> None:
    events: list[object] = []
    await HookRunner([Listener(events), Listener(events)]).call(ENDED)
    assert events == [ENDED, ENDED]


async def test_the_next_hook_is_called_when_the_one_before_it_is_done() -> None:
    events: list[object] = []
    await HookRunner([Listener(events, lambda: asyncio.sleep(0)), Listener(events)]).call(ENDED)
    assert events == [ENDED, "done", ENDED]


async def test_a_hook_needs_only_the_methods_it_wants() -> None:
    events: list[object] = []
    runner = HookRunner([Listener(events)])
    await runner.call(BeforeTool("ada", TURN, CALL, "{}"))
    await runner.call(AfterTool("ada", TURN, CALL, Outcome("seen")))
    await runner.call(AfterRound("ada", TURN, Round(1, 1, 1)))
    assert events == []


async def test_each_event_comes_to_the_method_of_its_name() -> None:
    received: list[tuple[str, object]] = []

    class All(Hooks):
        async def before_tool(self, event: BeforeTool) -> None:
            received.append(("before_tool", event))

        async def after_tool(self, event: AfterTool) -> None:
            received.append(("after_tool", event))

        async def after_round(self, event: AfterRound) -> None:
            received.append(("after_round", event))

        async def before_attempt(self, event: BeforeAttempt) -> None:
            received.append(("before_attempt", event))

        async def output_rejected(self, event: OutputRejected) -> None:
            received.append(("output_rejected", event))

        async def turn_ended(self, event: TurnEnded) -> None:
            received.append(("turn_ended", event))

    runner = HookRunner([All()])
    events: dict[str, Any] = {
        "before_tool": BeforeTool("ada", TURN, CALL, "{}"),
        "after_tool": AfterTool("ada", TURN, CALL, Outcome("seen")),
        "after_round": AfterRound("ada", TURN, Round(1, 1, 1)),
        "before_attempt": BeforeAttempt("ada", TURN, 1),
        "output_rejected": OutputRejected("ada", TURN, 1, CALL, Outcome("No.", is_error=True)),
        "turn_ended": ENDED,
    }
    assert [await runner.call(event) for event in events.values()] == [0] * 6
    assert received == list(events.items())


@pytest.mark.parametrize("act", [raises, exits, is_cancelled, hangs, ignores_a_cancellation])
async def test_a_hook_that_fails_is_logged_counted_and_keeps_no_other_hook_from_its_event(
    act: Callable[[], Awaitable[object]],
) -> None:
    events: list[object] = []
    before = failures()
    with capture_logs() as lines:
        assert await HookRunner([Listener(events, act), Listener(events)], timeout=AT_ONCE).call(ENDED) == 1
    assert events == [ENDED, ENDED]
    assert failures() == before + 1
    assert [(line["event"], line["hook"], line["method"]) for line in lines] == [
        ("hook.failed", "turn_ended", "Listener.turn_ended")
    ]


async def test_a_hook_that_is_not_async_fails_like_any_other() -> None:
    class Plain(Hooks):
        def turn_ended(self, event: TurnEnded) -> None:  # type: ignore[override]
            pass

    events: list[object] = []
    before = failures()
    await HookRunner([Plain(), Listener(events)]).call(ENDED)
    assert (events, failures()) == ([ENDED], before + 1)


async def test_a_cancellation_while_a_hook_runs_cancels_the_hook_and_counts_no_failure() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def waits() -> None:
        begun.set()
        try:
            await hangs()
        finally:
            ended.set()

    before = failures()
    calling = asyncio.create_task(HookRunner([Listener([], waits)], timeout=60).call(ENDED))
    await begun.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended.is_set()
    assert failures() == before
