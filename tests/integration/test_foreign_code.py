"""Code that an embedding program supplies for turns. An exception in it ends the call, but no turn, neighbour or
process.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.integration.test_loop_people import waits
from tests.support.harness import TICK, Harness
from turnstream.domain.kinds import TOOL_RESULT
from turnstream.domain.output import output_tools
from turnstream.domain.turns import OutputSpec, Turn
from turnstream.engine.hooks import AfterTool, BeforeTool, Hooks, TurnEnded
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, tool_use
from turnstream.tools.outputs import Outputs
from turnstream.tools.policy import Fallback
from turnstream.tools.tool import Tool, ToolError, tool
from turnstream.tools.toolset import Toolset

SCHEMA = '{"type":"object"}'


class OwnError(BaseException):
    pass


def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def raising(error: type[BaseException]) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


ERRORS = (KeyboardInterrupt, SystemExit, GeneratorExit, OwnError, asyncio.CancelledError, StopAsyncIteration)
DEEDS = {error.__name__: raising(error) for error in ERRORS}


def in_the_tool(deed: Callable[[], None]) -> Toolset:
    @tool(read_only=True, retries=0)
    async def bad() -> str:
        """Do harm."""
        deed()
        await asyncio.sleep(0)
        return "done"

    return with_tools(bad)


def in_the_approval(deed: Callable[[], None]) -> Toolset:
    def decide(_input: Mapping[str, Any]) -> bool:
        deed()
        return False

    @tool(read_only=True, approval=decide, approval_expiry=0.01)
    async def bad() -> str:
        """Do harm."""
        return "done"

    return with_tools(bad)


def in_the_input_of_a_fallback(deed: Callable[[], None]) -> Toolset:
    def change(_input: Mapping[str, Any]) -> Mapping[str, Any]:
        deed()
        return {}

    @tool(read_only=True)
    async def good() -> str:
        """Stand in."""
        return "done"

    @tool(read_only=True, fallback=Fallback("good", change))
    async def bad() -> str:
        """Fail."""
        raise ToolError("No.")

    return with_tools(bad, good)


def with_tools(*tools: Tool, outputs: Outputs | None = None) -> Toolset:
    return Toolset(tools, max_result_chars=1000, patience=TICK, outputs=outputs)


def failures_of(turn: Turn) -> list[bool]:
    """Returns, for each result of the turn, whether it is an error."""
    return [block.is_error for block in turn.blocks if block.type == TOOL_RESULT]


@pytest.mark.parametrize(
    ("place", "deed"),
    [
        *((place, deed) for place in (in_the_tool, in_the_input_of_a_fallback) for deed in DEEDS.values()),
        (in_the_tool, cancel_own_task),
    ],
)
async def test_an_exception_of_a_tool_is_the_outcome_of_its_call(
    harness: Harness, place: Callable[[Callable[[], None]], Toolset], deed: Callable[[], None]
) -> None:
    toolset, pause = place(deed), Pause()
    provider = ScriptedProvider(
        [[pause, *message_of(text("Calm."))], message_of(tool_use("bad", {}, "toolu_1")), message_of(text("Done."))]
    )
    with capture_logs():
        async with harness.replica(provider, toolset=toolset) as replica:
            calm = await harness.ask("Calm")
            replica.worker.wake()
            await pause.reached.wait()
            turn = await harness.finish(replica, await harness.ask(tools=toolset.own))
            pause.go.set()
            assert (await harness.finish(replica, calm)).status == "complete"
    assert turn.status == "complete"
    assert failures_of(turn) == [True]


@pytest.mark.parametrize("deed", DEEDS.values(), ids=[*DEEDS])
async def test_an_approval_that_cannot_be_decided_is_left_to_a_person(
    harness: Harness, deed: Callable[[], None]
) -> None:
    toolset = in_the_approval(deed)
    provider = ScriptedProvider([message_of(tool_use("bad", {}, "toolu_1"))])
    with capture_logs():
        async with harness.replica(provider, toolset=toolset) as replica:
            await waits(harness, replica, await harness.ask(tools=toolset.own))


@pytest.mark.parametrize(
    "spec",
    [
        OutputSpec(SCHEMA, validator="judge", max_attempts=1, max_iterations=1),
        OutputSpec(SCHEMA, handler="judge", max_attempts=1, max_iterations=1),
    ],
)
@pytest.mark.parametrize("deed", DEEDS.values(), ids=[*DEEDS])
async def test_an_exception_of_an_output_judge_is_the_outcome_of_the_draft(
    harness: Harness, spec: OutputSpec, deed: Callable[[], None]
) -> None:
    async def judge(*_: object) -> str:
        deed()
        return ""

    outputs = Outputs({"judge": judge}, {"judge": judge})
    provider = ScriptedProvider([message_of(tool_use("output", {}, "toolu_1"))])
    toolset = with_tools(outputs=outputs)
    with capture_logs():
        async with harness.replica(provider, toolset=toolset) as replica:
            turn = await harness.finish(replica, await harness.ask(tools=output_tools(spec), output=spec))
    assert failures_of(turn) == [True]


@pytest.mark.parametrize("deed", DEEDS.values(), ids=[*DEEDS])
async def test_an_exception_of_a_hook_is_counted_and_changes_no_turn(
    harness: Harness, deed: Callable[[], None]
) -> None:
    ended = asyncio.Event()

    class Bad(Hooks):
        async def before_tool(self, event: BeforeTool) -> None:
            deed()

        async def after_tool(self, event: AfterTool) -> None:
            deed()

        async def turn_ended(self, event: TurnEnded) -> None:
            ended.set()
            deed()

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    provider = ScriptedProvider([message_of(tool_use("look", {}, "toolu_1")), message_of(text("Done."))])
    with capture_logs():
        async with harness.replica(provider, [look], hooks=[Bad()]) as replica:
            turn = await harness.finish(replica, await harness.ask(tools=[look]))
            await ended.wait()
    assert (turn.status, failures_of(turn)) == ("complete", [False])
    assert turn.hook_failures >= 2, "the end of the turn is counted a moment later"
