"""What hooks may do, and that nobody else notices."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from app.domain.blocks import Block
from app.domain.rounds import Round
from app.domain.turns import Turn
from app.engine.hooks import AfterRound, AfterTool, BeforeTool, HookRunner, Hooks, TurnEnded
from app.tools.tool import Outcome

AT_ONCE = 0.01
TURN = Turn(UUID(int=1), UUID(int=2), UUID(int=3), "assistant", "running")
CALL = Block(0, 1, 1, "tool_use", "{}", tool_use_id="toolu_1", name="look")
ENDED = TurnEnded("ada", TURN)


class Told(Hooks):
    """Does `act` when a turn has ended, and writes down what it was told."""

    def __init__(self, told: list[object], act: Callable[[], Awaitable[object]] | None = None) -> None:
        self._told = told
        self._act = act

    async def turn_ended(self, event: TurnEnded) -> None:
        self._told.append(event)
        if self._act is not None:
            await self._act()
            self._told.append("done")


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


async def holds_out() -> None:
    """Does not let itself be cancelled, but once."""
    try:
        await hangs()
    except asyncio.CancelledError:
        await hangs()


def failures(hook: str = "turn_ended") -> float:
    return REGISTRY.get_sample_value("turnstream_hook_failures_total", {"hook": hook}) or 0


async def test_every_hook_is_told_of_its_event_in_the_order_given() -> None:
    told: list[object] = []
    await HookRunner([Told(told), Told(told)]).turn_ended(ENDED)
    assert told == [ENDED, ENDED]


async def test_the_next_hook_is_told_when_the_one_before_it_is_done() -> None:
    told: list[object] = []
    await HookRunner([Told(told, lambda: asyncio.sleep(0)), Told(told)]).turn_ended(ENDED)
    assert told == [ENDED, "done", ENDED]


async def test_a_hook_needs_only_the_methods_it_wants() -> None:
    told: list[object] = []
    observers = HookRunner([Told(told)])
    await observers.before_tool(BeforeTool("ada", TURN, CALL, "{}"))
    await observers.after_tool(AfterTool("ada", TURN, CALL, Outcome("seen")))
    await observers.after_round(AfterRound("ada", TURN, Round(1, 1, 1)))
    assert told == []


async def test_each_event_comes_to_the_method_of_its_name() -> None:
    told: list[tuple[str, object]] = []

    class All(Hooks):
        async def before_tool(self, event: BeforeTool) -> None:
            told.append(("before_tool", event))

        async def after_tool(self, event: AfterTool) -> None:
            told.append(("after_tool", event))

        async def after_round(self, event: AfterRound) -> None:
            told.append(("after_round", event))

        async def turn_ended(self, event: TurnEnded) -> None:
            told.append(("turn_ended", event))

    observers = HookRunner([All()])
    events: dict[str, Any] = {
        "before_tool": BeforeTool("ada", TURN, CALL, "{}"),
        "after_tool": AfterTool("ada", TURN, CALL, Outcome("seen")),
        "after_round": AfterRound("ada", TURN, Round(1, 1, 1)),
        "turn_ended": ENDED,
    }
    for name, event in events.items():
        await getattr(observers, name)(event)
    assert told == list(events.items())


@pytest.mark.parametrize("act", [raises, exits, is_cancelled, hangs, holds_out])
async def test_a_hook_that_fails_is_logged_counted_and_keeps_nobody_from_going_on(
    act: Callable[[], Awaitable[object]],
) -> None:
    told: list[object] = []
    before = failures()
    with capture_logs() as lines:
        await HookRunner([Told(told, act), Told(told)], patience=AT_ONCE).turn_ended(ENDED)
    assert told == [ENDED, ENDED]
    assert failures() == before + 1
    assert [(line["event"], line["hook"], line["method"]) for line in lines] == [
        ("hook.failed", "turn_ended", "Told.turn_ended")
    ]


async def test_a_hook_that_is_not_async_fails_like_any_other() -> None:
    class Plain(Hooks):
        def turn_ended(self, event: TurnEnded) -> None:  # type: ignore[override]
            pass

    told: list[object] = []
    before = failures()
    await HookRunner([Plain(), Told(told)]).turn_ended(ENDED)
    assert (told, failures()) == ([ENDED], before + 1)


async def test_who_is_cancelled_while_a_hook_runs_takes_the_hook_along_and_counts_no_failure() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def waits() -> None:
        begun.set()
        try:
            await hangs()
        finally:
            ended.set()

    before = failures()
    telling = asyncio.create_task(HookRunner([Told([], waits)], patience=60).turn_ended(ENDED))
    await begun.wait()
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
    assert ended.is_set()
    assert failures() == before
