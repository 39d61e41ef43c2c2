"""Three APIs answer one chat in turn, in rounds with tools. Each request that their SDKs send is valid."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.contracts.test_provider import REPLY, TOOLS, chat_stream_of, responses_stream_of, stream_of
from tests.integration.adapters import Talk, talking
from tests.integration.recordings import Heard, answer, hear, running
from tests.support.legal import anthropic as legal
from tests.support.legal import openai as openai_legal
from tests.support.legal import responses as responses_legal
from turnstream.domain.blocks import Block
from turnstream.domain.turns import Turn, TurnRequest
from turnstream.llm.conversation.messages import build_messages
from turnstream.llm.provider import ModelRequest

Json = dict[str, Any]

STREAMS = {
    "anthropic": stream_of(*REPLY),
    "openai-chat": chat_stream_of(*REPLY),
    "openai-responses": responses_stream_of(*REPLY),
}
LEGAL: dict[str, Callable[[Json], list[str]]] = {
    "anthropic": legal.request_problems,
    "openai-chat": openai_legal.request_problems,
    "openai-responses": responses_legal.request_problems,
}
ORDERS = [
    ["anthropic", "openai-responses", "openai-chat"],
    ["openai-responses", "anthropic", "openai-chat"],
    ["openai-chat", "openai-responses", "anthropic"],
]


@pytest.fixture
async def talks() -> AsyncIterator[dict[str, Talk]]:
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(talking(name)) for name in STREAMS}


def asked(talk: Talk) -> Json:
    found: Json = json.loads(talk.server.requests[-1].body)
    return found


def users(path: list[Turn], words: str, model: str) -> list[Turn]:
    """Adds a question to the path, and the turn that will answer it."""
    hear(path, [{"type": "text", "text": words}])
    *before, turn = running(path)
    request = TurnRequest(model, tools=TOOLS)
    return [*before, replace(turn, request=request)]


def settled(path: list[Turn]) -> list[Turn]:
    """Adds the results of the path's last calls."""
    calls = [block for block in path[-1].blocks if block.is_call and block.round == path[-1].rounds[-1].number]
    hear(path, [{"type": "tool_result", "tool_use_id": call.tool_use_id, "content": "seen"} for call in calls])
    return path


async def round_of(talk: Talk, name: str, path: list[Turn]) -> list[Block]:
    """Makes one model call. The reply is always the same, so the ids of its calls repeat."""
    talk.answers(STREAMS[name])
    messages = build_messages(path)
    heard = await Heard().listen(talk.provider, ModelRequest(name, messages, tools=TOOLS))
    assert heard.error is None
    assert LEGAL[name](asked(talk)) == []
    return heard.blocks


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
async def test_a_chat_that_changes_its_api_with_every_turn_is_legal_for_each(
    order: list[str], talks: dict[str, Talk]
) -> None:
    path: list[Turn] = []
    for number, name in enumerate([*order, *order]):
        path = users(path, f"question {number}", name)
        for _ in range(2):
            path = settled(answer(path, await round_of(talks[name], name, path), "tool_use"))
        path = answer(path, [Block(0, 0, 1, "text", f"answer {number}")], "end_turn")
    said = json.dumps(asked(talks[order[-1]]))
    assert [said.count(f"answer {number}") for number in range(5)] == [1] * 5


async def test_a_fallback_in_the_middle_of_a_turn_gets_the_rounds_before_it(talks: dict[str, Talk]) -> None:
    path = users([], "question", "openai-responses")
    for name, following in pairwise(["openai-responses", "openai-chat", "anthropic", "openai-responses"]):
        path = settled(answer(path, await round_of(talks[name], name, path), "tool_use"))
        rounds = path[-1].rounds
        path = [*path[:-1], replace(path[-1], rounds=(*rounds[:-1], replace(rounds[-1], model=name)))]
        messages = build_messages(path, following)
        await Heard().listen(talks[following].provider, ModelRequest(following, messages, tools=TOOLS))
        assert LEGAL[following](asked(talks[following])) == []
    thoughts = [item for item in asked(talks["openai-responses"])["input"] if item.get("type") == "reasoning"]
    assert [thought["id"] for thought in thoughts] == ["rs_1"], "its own thought goes back, those of others do not"
