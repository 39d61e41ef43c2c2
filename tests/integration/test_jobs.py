"""Background tools: their calls run apart from turns that wait without memory, and nothing is run twice or lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.harness import OWNER, POLICY, Asked, Harness, Replica, results_of
from turnstream.llm.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.tools.tool import File, ToolContext, ToolResult, tool, tools_of


@dataclass
class Works:
    """`done` is what took effect. A call goes on when its pause is over."""

    done: list[str] = field(default_factory=list)
    pause: Pause = field(default_factory=Pause)
    contexts: list[ToolContext] = field(default_factory=list)

    @tool(background=True)
    async def dig(self, where: str, context: ToolContext) -> str:
        """Dig, once."""
        self.done.append(where)
        self.contexts.append(context)
        self.pause.reached.set()
        await self.pause.go.wait()
        return f"a hole in {where}"

    @tool(background=True, retry_safe=True)
    async def survey(self, context: ToolContext) -> str:
        """Survey, in steps."""
        begin = context.checkpointed or 0
        self.done.append(f"from {begin}")
        await context.checkpoint(begin + 1)
        context.progress(f"step {begin + 1}")
        self.pause.reached.set()
        await self.pause.go.wait()
        return f"surveyed in {begin + 1} steps"

    @tool()
    async def look(self) -> str:
        """Look."""
        self.done.append("looked")
        return "seen"


@pytest.fixture
def works() -> Works:
    return Works()


def calls(*named: tuple[str, str] | tuple[str, str, dict[str, Any]]) -> Reply:
    return message_of(*(tool_use(name, dict(*given), id) for name, id, *given in named))


def provider(*first: Any) -> ScriptedProvider:
    return ScriptedProvider([calls(*first), message_of(text("There."))])


async def status(harness: Harness, asked: Asked, wanted: str) -> None:
    while (await harness.turn(asked)).status != wanted:  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.01)


async def test_a_turn_waits_for_a_background_tool_and_continues_with_its_result(harness: Harness, works: Works) -> None:
    model = provider(("dig", "a", {"where": "Rome"}), ("look", "b"))
    async with harness.replica(model, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        await works.pause.reached.wait()
        await status(harness, asked, "waiting")
        await replica.idle(asked)
        waiting = await harness.turn(asked)
        assert [(job.name, job.settled) for job in waiting.jobs] == [("dig", False)]
        assert (results_of(waiting).keys(), works.done) == ({"b"}, ["Rome", "looked"])
        works.pause.go.set()
        turn = await harness.finish(replica, asked)
    assert (turn.status, results_of(turn)["a"].text) == ("complete", "a hole in Rome")
    assert works.done == ["Rome", "looked"]
    assert works.contexts[0].idempotency_key == f"{turn.id}:1:a"
