"""Chats with answers of Gemini: later rounds and turns send Gemini's signatures back, and requests to other providers
are valid.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from google.genai import types

from tests.contracts.test_provider import REPLY, TOOLS, gemini_stream_of
from tests.extensions.gemini.streams import FIRST, MODEL, SECOND, STOP, call, chunk
from tests.extensions.openai.test_responses_in_a_chat import LEGAL, STREAMS, settled, users
from tests.integration.adapters import Talk, talking
from tests.integration.recordings import Heard, answer
from tests.support.canned import Answer, Asked, CannedServer, served
from tests.support.http_client import Client
from tests.support.http_server import serving
from turnstream.domain.blocks import Block
from turnstream.domain.turns import Turn
from turnstream.extensions.gemini.parameters import PARAMETERS
from turnstream.extensions.gemini.provider import GeminiProvider
from turnstream.llm.conversation.messages import build_messages
from turnstream.llm.models.catalog import ProviderModels
from turnstream.llm.provider import ModelRequest

Json = dict[str, Any]
ALL = {**STREAMS, "gemini": gemini_stream_of(*REPLY)}


def problems(name: str, body: Json) -> list[str]:
    if name != "gemini":
        return LEGAL[name](body)
    contents = [types.Content.model_validate(content) for content in body["contents"]]
    found = []
    for before, after in pairwise(contents):
        calls = [part.function_call for part in before.parts or () if part.function_call]
        answers = [part.function_response for part in after.parts or () if part.function_response]
        if [each.name for each in calls] != [each.name for each in answers]:
            found.append(f"{len(calls)} calls have {len(answers)} results")
        signed = [part.thought_signature for part in before.parts or () if part.function_call]
        if signed and signed[0] is None:
            found.append("the first call is not signed")
    return found


@pytest.fixture
async def talks() -> AsyncIterator[dict[str, Talk]]:
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(talking(name)) for name in ALL}


@pytest.mark.parametrize(
    "order",
    [["gemini", "anthropic", "openai-chat", "gemini", "openai-responses"], ["openai-responses", "gemini", "anthropic"]],
    ids=" ".join,
)
async def test_a_chat_that_changes_its_api_is_legal_for_each(order: list[str], talks: dict[str, Talk]) -> None:
    path: list[Turn] = []
    for number, name in enumerate([*order, *order]):
        path = users(path, f"question {number}", name)
        for _ in range(2):
            talks[name].answers(ALL[name])
            heard = await Heard().listen(talks[name].provider, ModelRequest(name, build_messages(path), tools=TOOLS))
            assert heard.error is None
            assert problems(name, json.loads(talks[name].server.requests[-1].body)) == []
            path = settled(answer(path, heard.blocks, "tool_use"))
        path = answer(path, [Block(0, 0, 1, "text", f"answer {number}")], "end_turn")


@dataclass
class Script(CannedServer):
    """Sends the scripted answers in order."""

    answers: list[bytes] = field(default_factory=list)

    def answer_to(self, asked: Asked) -> Answer:
        return Answer(self.answers[len(self.requests) - 1], sizes=(11,))


async def test_a_server_runs_the_calls_and_returns_every_signature(database_url: str) -> None:
    script = Script(
        answers=[
            chunk({"text": "I look.", "thought": True})
            + chunk(call("doc_tree", {}, FIRST, "fc_1"), call("doc_tree", {}))
            + chunk({"text": ""}, **STOP),
            chunk({"text": "There are files."}) + chunk({"text": "", "thoughtSignature": SECOND}, **STOP),
            chunk({"text": "Again."}, **STOP),
        ]
    )
    async with (
        served(script) as server,
        GeminiProvider("a key", server.url) as provider,
        serving(database_url, offers=[ProviderModels(provider, [MODEL], (), PARAMETERS)]) as api,
        Client(api.url) as client,
    ):
        chat = await client.chat()
        for _ in range(2):
            await client.ask(chat, model=MODEL)
    _, second, third = (json.loads(asked.body)["contents"] for asked in server.requests)
    reply, results = second[1]["parts"], second[2]["parts"]
    assert [part.get("thoughtSignature") for part in reply if "functionCall" in part] == [FIRST, None]
    assert [part["functionResponse"].get("id") for part in results] == ["fc_1", None]
    assert third[: len(second)] == second, "the prefix is the same, which the provider has in its cache"
    assert third[len(second)] == {
        "role": "model",
        "parts": [{"text": "There are files."}, {"text": "", "thoughtSignature": SECOND}],
    }
