"""Replays of every kind of turn: structured, with a fallback, summarised, cancelled during a tool call."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.test_provider import stream_of
from tests.integration.plays import Play, playing
from tests.support.harness import POLICY, QUICK, Asked, Harness, Replica
from tests.support.model_apis import EXTENSIONS
from tests.support.pictures import PIXEL
from turnstream.config import Settings
from turnstream.domain.kinds import SUMMARY, VERDICT
from turnstream.domain.output import output_of, output_tools, phase_of
from turnstream.domain.plans import Plans
from turnstream.domain.turns import Limits, OutputSpec, Turn
from turnstream.engine.model_route import ModelPolicy
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.interceptor import CallPublisher
from turnstream.llm.models.catalog import Models
from turnstream.llm.provider import BlockOpened, Part
from turnstream.scripted import text, tool_use
from turnstream.setup.policies import worker_policy
from turnstream.storage.database import Database, Statement, connect
from turnstream.tools.outputs import OUTPUT, Outputs
from turnstream.tools.tool import File, Tool, ToolContext, tool
from turnstream.tools.toolset import Toolset
from turnstream_lab.offline import offline_models
from turnstream_lab.recordings import RecordingInterceptor, Recordings
from turnstream_lab.replay_command import divergences
from turnstream_lab.rerun import rerun
from turnstream_lab.transfer import find_turn

FORGET = Statement("DELETE FROM chats WHERE id = :chat")
MODELS = """
[models.claude-x]
provider = "anthropic"
fallbacks = ["claude-y"]
[models.claude-y]
provider = "anthropic"
"""
SCHEMA = '{"type":"object","properties":{"year":{"type":"integer"}},"required":["year"],"additionalProperties":false}'
BUSY = Play(
    529, json.dumps({"error": {"type": "overloaded_error", "message": "No."}}).encode(), [99], "refused", [], ""
)


@tool(read_only=True)
async def look(what: str = "it") -> str:
    """Look at something."""
    return f"seen {what}"


async def critic(draft: Any, context: ToolContext) -> str:
    return f"{draft} of {context.owner}"


def plausible(value: Any) -> str | None:
    return None if value["year"] < 2100 else "that year is in the future"


OUTPUTS = Outputs({"plausible": plausible}, {"critic": critic})


def says(*blocks: Sequence[Part]) -> Play:
    calls = any(isinstance(part, BlockOpened) and part.type == "tool_use" for block in blocks for part in block)
    body = stream_of(*blocks)
    if not calls:
        body = body.replace(b'"stop_reason": "tool_use"', b'"stop_reason": "end_turn"')
    return Play(200, body, [70], "whole", [], "tool_use")


def puts_out(id: str, year: int) -> list[Part]:
    return tool_use(OUTPUT, {"year": year}, id)


class World:
    def __init__(self, harness: Harness, target: Database, folder: Path) -> None:
        self.harness = harness
        self.target = target
        self.folder = folder

    @asynccontextmanager
    async def replica(
        self, plays: Mapping[str, Sequence[Play]], *tools: Tool, outputs: Outputs = OUTPUTS
    ) -> AsyncIterator[Replica]:
        policy = replace(
            POLICY, model=ModelPolicy(QUICK, 60, fallbacks=lambda model: ["claude-y"][model != "claude-x" :])
        )
        with Recordings(self.folder) as recordings:
            async with (
                playing() as stage,
                AnthropicProvider("key", stage.url, interceptors=[RecordingInterceptor(recordings)]) as provider,
                self.harness.replica(
                    CallPublisher(provider), toolset=Toolset(tools, outputs=outputs), policy=policy
                ) as replica,
            ):
                for model, script in plays.items():
                    stage.rehearse(model, script)
                yield replica

    async def told_again(self, asked: Asked) -> list[str]:
        """Replays a turn. Returns the differences that are reported."""
        models = self.folder / "models.toml"
        models.write_text(MODELS)
        settings = Settings(max_retries=QUICK.most, max_retry_after=QUICK.max_retry_after, models_file=models)
        owner, then = await find_turn(self.harness.database, asked.turn)
        recordings = Recordings(self.folder).read(asked.turn)
        await self.target.rows(FORGET, chat=asked.chat)
        again = await rerun(
            self.harness.database,
            self.target,
            owner,
            then,
            recordings,
            open_models=partial(offline_models, settings, EXTENSIONS),
            policy=worker_policy(settings, Models(), Plans()),
        )
        return list(divergences(then, recordings, again))


@pytest.fixture
async def world(harness: Harness, shared_database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with connect(shared_database_url, size=4) as target:
        yield World(harness, target, tmp_path)


async def structured(world: World, spec: OutputSpec, *plays: Play) -> tuple[Asked, Turn]:
    async with world.replica({"claude-x": plays}, look) as replica:
        asked = await world.harness.ask(model="claude-x", tools=[look, *output_tools(spec)], output=spec)
        return asked, await world.harness.finish(replica, asked)


async def test_outputs_that_were_refused_and_taken_are_so_again(world: World) -> None:
    asked, turn = await structured(
        world,
        OutputSpec(SCHEMA, validator="plausible"),
        says(tool_use("look", {}, "a")),
        says(puts_out("b", 2345)),
        says(puts_out("c", 1969)),
    )
    assert output_of(turn) == '{"year":1969}'
    assert await world.told_again(asked) == []


async def test_drafts_that_were_refined_are_submitted_again(world: World) -> None:
    asked, turn = await structured(
        world,
        OutputSpec(SCHEMA, handler="critic"),
        says(puts_out("a", 1)),
        says(puts_out("b", 2), tool_use("submit", {}, "c")),
    )
    assert output_of(turn) == '{"year":2}'
    assert await world.told_again(asked) == []


async def test_outputs_that_were_written_as_text_are_judged_as_they_were(world: World) -> None:
    asked, turn = await structured(
        world,
        OutputSpec(SCHEMA, validator="plausible", native=True),
        says(text('{"year":', "2345}")),
        says(tool_use("look", {}, "a")),
        says(text('{"year":1969}')),
    )
    assert output_of(turn) == '{"year":1969}'
    assert await world.told_again(asked) == []


async def test_a_turn_that_had_a_fallback_has_it_again(world: World) -> None:
    plays = {"claude-x": [says(tool_use("look", {}, "a")), *[BUSY] * 4], "claude-y": [says(text("It is high."))]}
    async with world.replica(plays, look) as replica:
        asked = await world.harness.ask(model="claude-x", tools=[look])
        turn = await world.harness.finish(replica, asked)
    assert [round.model for round in turn.rounds] == ["claude-x", "claude-y"]
    assert await world.told_again(asked) == []


async def test_a_turn_that_had_the_turns_before_summarised_does_it_again(world: World) -> None:
    limits = Limits(context_window=2_000)
    long = says(text("y" * 4_000))
    long = replace(long, body=long.body.replace(b'"input_tokens": 10', b'"input_tokens": 1900'))
    plays = [long, says(text("All of it was y.")), says(text("It is high."))]
    async with world.replica({"claude-x": plays}) as replica:
        first = await world.harness.ask("x" * 400, model="claude-x", limits=limits)
        await world.harness.finish(replica, first)
        asked = await world.harness.ask(model="claude-x", limits=limits, after=first)
        turn = await world.harness.finish(replica, asked)
    assert [block.type for block in turn.blocks] == [SUMMARY, "text"]
    assert await world.told_again(asked) == []


async def test_tools_that_a_cancellation_cut_short_are_cut_short_again(world: World) -> None:
    reached = asyncio.Event()

    @tool(read_only=True)
    async def hang() -> str:
        """Hang."""
        reached.set()
        await asyncio.Event().wait()
        return ""

    plays = [says(tool_use("look", {}, "a"), tool_use("hang", {}, "b"), tool_use("look", {"what": "you"}, "c"))]
    async with world.replica({"claude-x": plays}, look, hang) as replica:
        asked = await world.harness.ask(model="claude-x", tools=[look, hang])
        replica.worker.wake()
        await reached.wait()
        while len(replica.view(asked).turn.blocks) < 5:
            await replica.view(asked).wakeup.wait()
        await replica.cancel(asked)
        turn = await world.harness.finish(replica, asked)
    assert turn.status == "cancelled"
    assert await world.told_again(asked) == []


async def test_files_that_tools_returned_are_there_again(world: World) -> None:
    @tool(read_only=True)
    async def paint() -> list[str | File]:
        """Make a picture."""
        return ["Here:", File(PIXEL)]

    plays = [says(tool_use("paint", {}, "a")), says(text("There."))]
    async with world.replica({"claude-x": plays}, paint) as replica:
        asked = await world.harness.ask(model="claude-x", tools=[paint])
        await world.harness.finish(replica, asked)
    assert await world.told_again(asked) == []


@pytest.mark.parametrize("native", [True, False])
async def test_an_output_that_was_being_judged_when_it_was_cancelled_is_so_again(world: World, native: bool) -> None:
    reached, spec = asyncio.Event(), OutputSpec(SCHEMA, validator="never", native=native)

    async def never(_value: Any) -> str | None:
        reached.set()
        await asyncio.Event().wait()
        return None

    plays = [says(text('{"year":1}') if native else puts_out("a", 1))]
    async with world.replica({"claude-x": plays}, outputs=Outputs({"never": never})) as replica:
        asked = await world.harness.ask(model="claude-x", tools=output_tools(spec), output=spec)
        replica.worker.wake()
        await reached.wait()
        await replica.cancel(asked)
        turn = await world.harness.finish(replica, asked)
    assert phase_of(turn) == "validating"
    assert VERDICT not in [block.type for block in turn.blocks]
    assert await world.told_again(asked) == []
