"""A cancelled structured turn shows its phase."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.harness import OWNER, Harness
from turnstream.domain.output import output_tools, phase_of
from turnstream.domain.turns import OutputSpec, Turn
from turnstream.llm.provider import MessageEnded, Part
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.turns import Turns
from turnstream.tools.outputs import OUTPUT, Outputs
from turnstream.tools.tool import ToolContext, tool
from turnstream.tools.toolset import Toolset

SCHEMA = '{"type":"object","properties":{"year":{"type":"integer"}},"required":["year"],"additionalProperties":false}'
JUDGED = OutputSpec(SCHEMA, validator="never")
NATIVE = replace(JUDGED, native=True)
REFLECTED = OutputSpec(SCHEMA, handler="quick")
THOUGHT_OVER = OutputSpec(SCHEMA, validator="never", handler="quick")


class Hangs:
    """A part of the program that hangs."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def __call__(self, *_: Any) -> str:
        self.reached.set()
        await asyncio.Event().wait()
        return ""


async def quick(draft: Any, context: ToolContext) -> str:
    return "Go on."


def out() -> list[Part]:
    return tool_use(OUTPUT, {"year": 1}, "o")


def wrong() -> Reply:
    return message_of(tool_use(OUTPUT, {"year": "x"}, "w"))


def unfinished(*blocks: list[Part]) -> Iterable[Any]:
    """Returns a reply without its last batch."""
    return list(message_of(*blocks))[:-1]


async def cancelled(harness: Harness, spec: OutputSpec, hangs: Hangs, *replies: Any) -> Turn:
    """Cancels the turn when the last reply, or its call, hangs."""

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return await hangs()

    last = list(replies[-1])
    if not any(isinstance(part, MessageEnded) for parts in last for part in parts):
        last.append(Pause(reached=hangs.reached))
    outputs = Outputs({"never": hangs}, {"quick": quick, "slow": hangs})
    provider = ScriptedProvider([*replies[:-1], last])
    async with harness.replica(provider, toolset=Toolset([look], outputs=outputs)) as replica:
        asked = await harness.ask(tools=[look, *output_tools(spec)], output=spec)
        replica.worker.wake()
        await hangs.reached.wait()
        await replica.cancel(asked)
        turn = await harness.finish(replica, asked)
    assert (turn.status, turn.stop_reason, turn.error) == ("cancelled", "cancelled", None)
    assert turn.ended_at is not None
    return turn


@pytest.mark.parametrize(
    ("spec", "replies", "phase"),
    [
        (JUDGED, [[]], "building"),
        (JUDGED, [wrong(), []], "building"),
        (JUDGED, [unfinished(text("I "))], "iterating"),
        (JUDGED, [unfinished(out())], "iterating"),
        (JUDGED, [message_of(tool_use("look", {}, "l"))], "iterating"),
        (JUDGED, [message_of(out())], "validating"),
        (NATIVE, [unfinished(text('{"year":1}'))], "iterating"),
        (NATIVE, [message_of(text('{"year":1}'))], "validating"),
        (THOUGHT_OVER, [message_of(out(), tool_use("submit", {}, "s"))], "validating"),
        (replace(REFLECTED, handler="slow"), [message_of(out())], "reflecting"),
        (REFLECTED, [message_of(out()), []], "reflecting"),
        (REFLECTED, [message_of(out()), message_of(tool_use("look", {}, "l"))], "reflecting"),
    ],
)
async def test_a_cancelled_turn_tells_its_phase(
    harness: Harness, spec: OutputSpec, replies: list[Any], phase: str
) -> None:
    turn = await cancelled(harness, spec, Hangs(), *replies)
    assert phase_of(turn) == phase
    assert turn.usage.keys() >= ({"output_tokens"} if turn.rounds else set())


async def test_one_that_waits_in_the_queue_was_about_to_be_built(harness: Harness) -> None:
    asked = await harness.ask(output=JUDGED)
    await Turns(harness.database).cancel(OWNER, asked.chat, asked.turn)
    async with harness.replica(ScriptedProvider([])) as replica:
        turn = await harness.finish(replica, asked)
    assert phase_of(turn) == "building"


async def test_turns_that_are_not_cancelled_or_not_structured_are_in_no_phase(harness: Harness) -> None:
    asked, other = await harness.ask(), await harness.ask(output=OutputSpec(SCHEMA, native=True))
    await Turns(harness.database).cancel(OWNER, asked.chat, asked.turn)
    async with harness.replica(ScriptedProvider([message_of(text('{"year":1}'))])) as replica:
        assert phase_of(await harness.finish(replica, asked)) is None
        assert phase_of(await harness.finish(replica, other)) is None
