"""Many turns with a provider that fails in every possible way. Each turn ends, and its stored data is correct."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

import pytest

from tests.integration.openai_plays import ChatAuthor, ResponsesAuthor
from tests.integration.plays import Author, Play, Stage, playing
from tests.support.effort import FULL
from tests.support.harness import POLICY, Asked, Harness, Replica, with_model
from tests.support.legal import anthropic as legal
from tests.support.legal import openai as openai_legal
from tests.support.legal import responses as responses_legal
from tests.support.load import slowdown
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TEXT
from turnstream.domain.turns import Limits, Turn
from turnstream.extensions.openai.chat import render as openai_render
from turnstream.extensions.openai.provider import OpenAIChatProvider, OpenAIResponsesProvider
from turnstream.extensions.openai.responses import render as responses_render
from turnstream.libraries.providers.anthropic import render as anthropic_render
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.conversation.messages import build_messages
from turnstream.llm.provider import ModelRequest, Provider
from turnstream.tools.tool import tool
from turnstream_lab.chaos import FAULTS, ChaosInterceptor, ChaosPlan

TURNS = int(os.environ.get("CHAOS_TURNS", "400" if FULL else "250"))
SEED = int(os.environ.get("CHAOS_SEED", "5"))
AT_ONCE = 48
# Some faults request a wait that is longer than the longest accepted wait.
PLAN = ChaosPlan(SEED, share=0.4, longest_wait=0.07, reach=300)
PATIENCE = 0.4  # seconds
# The author of the replies, by the model's API. A chat may switch between models.
AUTHORS = {"claude": Author, "chat": ChatAuthor, "responses": ResponsesAuthor}


@tool(read_only=True)
async def look(what: str = "it") -> str:
    """Look at something."""
    return f"seen {what}"


@tool()
async def explode() -> str:
    """Break."""
    raise ValueError


@dataclass(frozen=True)
class World:
    stage: Stage
    harness: Harness
    replica: Replica

    async def turn(self, number: int, after: Asked | None = None) -> tuple[Asked, Turn]:
        """Runs a turn to its end."""
        random = Random(f"{SEED}:{number}")
        api = random.choice(list(AUTHORS))
        model = f"{api}-{number}"
        self.stage.rehearse(model, [])
        self.stage.scripts[model] = _endless(AUTHORS[api](random), random)
        limits = Limits(recovery=random.choice(["retry", "continue"]), max_recoveries=random.choice([0, 2, 5]))
        asked = await self.harness.ask(model=model, tools=[look, explode], limits=limits, after=after)
        return asked, await self.harness.finish(self.replica, asked)

    async def chat(self, number: int) -> list[Turn]:
        """Runs two turns. The request of the second turn contains the first turn."""
        first, answer = await self.turn(number)
        _, other = await self.turn(number + 1, after=first)
        said = [await self.harness.turn(Asked(first.chat, _parent(turn))) for turn in (answer, other)]
        assert _problems([said[0], answer, said[1], other]) == []
        return [answer, other]


def _endless(author: Author, random: Random) -> Iterator[Play]:
    """Yields complete answers, which the chaos disturbs. After some of them, all further answers end the turn."""
    for _ in range(random.randrange(4)):
        yield author.play(ending="whole")
    while True:
        yield author.play(ending="whole", calm=True)


def _parent(turn: Turn) -> UUID:
    assert turn.parent_id is not None
    return turn.parent_id


def _problems(path: list[Turn]) -> list[str]:
    """Returns the problems of the request that would come next."""
    last = path[-1]
    question = replace(path[0], id=UUID(int=1), blocks=(Block(0, 0, 0, TEXT, "Go on."),))
    running = replace(last, id=UUID(int=2), status="running", blocks=(), rounds=(), usage={}, error=None)
    assert last.request is not None
    messages = build_messages([*path, question, running])
    request = ModelRequest(last.request.model, messages, tools=last.request.tools)
    return [
        *legal.request_problems(json.loads(anthropic_render.render(request))),
        *openai_legal.request_problems(json.loads(openai_render.render(request))),
        *responses_legal.request_problems(json.loads(responses_render.render(request))),
    ]


@pytest.mark.timeout(300)
async def test_every_turn_ends_under_every_fault(
    harness: Harness, record_property: Callable[[str, object], None]
) -> None:
    chaos, gate = ChaosInterceptor(PLAN), asyncio.Semaphore(AT_ONCE)
    # On a busy machine, calls are silent for longer without any fault, and a stalled call is repeated. So the limit
    # grows with the load.
    policy = with_model(POLICY, stall_timeout=PATIENCE * slowdown())
    async with (
        playing() as stage,
        AnthropicProvider("key", stage.url, interceptors=[chaos]) as anthropic,
        OpenAIChatProvider("key", stage.url, interceptors=[chaos]) as chat,
        OpenAIResponsesProvider("key", stage.url, interceptors=[chaos]) as responses,
        harness.replica(lambda model: providers[model.partition("-")[0]], [look, explode], policy=policy) as replica,
    ):
        providers: dict[str, Provider] = {"claude": anthropic, "chat": chat, "responses": responses}
        world = World(stage, harness, replica)

        async def converse(number: int) -> list[Turn]:
            async with gate:
                return await world.chat(number)

        async with asyncio.TaskGroup() as group:
            chats = [group.create_task(converse(number)) for number in range(0, TURNS, 2)]
    turns = [turn for each in chats for turn in each.result()]
    assert stage.problems == []
    assert chaos.happened.keys() == {*FAULTS}
    assert {model.partition("-")[0] for model, played in stage.played.items() if played} == AUTHORS.keys()
    ends = Counter(f"{turn.status} ({turn.error.type if turn.error else turn.stop_reason})" for turn in turns)
    assert {turn.status for turn in turns} == {"complete", "error"}
    assert all(turn.error is not None for turn in turns if turn.status == "error")
    record_property("chaos: faults", ", ".join(f"{fault} {chaos.happened[fault]}" for fault in FAULTS))
    record_property("chaos: turns", ", ".join(f"{count} {end}" for end, count in ends.most_common()))
