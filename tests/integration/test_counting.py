"""The provider's own count of tokens: when the server requests it, how, and what the count changes."""

import asyncio
import builtins
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.canned import Answer, CannedServer, canned_server
from tests.support.harness import Asked, Harness, Replica
from tests.support.turns import TURN
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ProviderError, TransientError
from turnstream.domain.history import COMPACTED
from turnstream.domain.turns import Limits, ToolSpec, Turn
from turnstream.engine import requests
from turnstream.extensions.openai.provider import OpenAIResponsesProvider
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.llm.interceptor import CallPublisher
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.llm.provider import Message, ModelCall, ModelRequest, count_tokens
from turnstream.scripted import ScriptedProvider, message_of, text
from turnstream_lab.recordings import RecordingInterceptor, Recordings
from turnstream_lab.replay import ReplayInterceptor

JSON = {"content-type": "application/json", "request-id": "req_1"}
OVERLOADED = b'{"type":"error","error":{"type":"overloaded_error","message":"No."}}'
REQUEST = ModelRequest(
    "claude-opus-5-5",
    (Message("user", (Block(0, 0, 0, "text", "Hello"),)),),
    system="Be kind.",
    params={"max_tokens": 5, "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"}},
    tools=(ToolSpec("look", "", "{}"),),
    call=ModelCall(TURN, 1, 1, "claude-opus-5-5"),
)


@pytest.fixture
async def server() -> AsyncIterator[CannedServer]:
    async with canned_server() as server:
        server.answer = Answer(b'{"input_tokens": 1234}', headers=JSON)
        yield server


async def test_the_body_is_that_of_the_call_without_members_that_the_counter_refuses(server: CannedServer) -> None:
    async with AnthropicProvider("a key", server.url) as provider:
        assert await count_tokens(provider, REQUEST) == 1234
    (asked,) = server.requests
    assert (asked.target, asked.headers["authorization"]) == ("/v1/messages/count_tokens", "Bearer a key")
    body = json.loads(asked.body)
    assert {*body} == {"model", "messages", "system", "thinking", "tools"}
    assert body["messages"][0]["content"][0]["text"] == "Hello"


async def test_responses_have_a_counter_too(server: CannedServer) -> None:
    async with OpenAIResponsesProvider("a key", server.url) as provider:
        assert (
            await count_tokens(provider, replace(REQUEST, params={"max_tokens": 5, "tool_choice": {"type": "auto"}}))
            == 1234
        )
    (asked,) = server.requests
    assert asked.target == "/responses/input_tokens"
    body = json.loads(asked.body)
    assert {*body} == {"model", "instructions", "input", "tools", "tool_choice"}
    assert (body["instructions"], body["input"]) == ("Be kind.", [{"role": "user", "content": "Hello"}])


async def test_a_count_passes_the_interceptors_of_model_calls(server: CannedServer, tmp_path: Path) -> None:
    with Recordings(tmp_path) as recordings:
        async with AnthropicProvider("a key", server.url, interceptors=[RecordingInterceptor(recordings)]) as adapter:
            models = Models([ProviderModels(CallPublisher(adapter), [Model("ours", upstream="claude-opus-5-5")])])
            assert await count_tokens(models.provider_for("ours"), REQUEST) == 1234
    (recording,) = Recordings(tmp_path).read(TURN)
    assert recording.url.endswith("/v1/messages/count_tokens")
    assert json.loads(recording.request)["model"] == "claude-opus-5-5"
    assert (recording.body, recording.ending) == (b'{"input_tokens": 1234}', "whole")
    replay = ReplayInterceptor([recording])
    async with AnthropicProvider("a key", "http://nowhere.invalid", interceptors=[replay]) as again:
        assert await count_tokens(again, REQUEST) == 1234


@pytest.mark.parametrize(
    ("answer", "type"),
    [
        (
            Answer(OVERLOADED, 529, JSON),
            "overloaded_error",
        ),
        (Answer(b'{"tokens": 1}', headers=JSON), "bad_count"),
        (Answer(b"<html>", headers=JSON), "bad_count"),
        (Answer(b'{"input_tokens"', headers=JSON, ending="reset"), "connection_error"),
    ],
)
@pytest.mark.parametrize("kind", [AnthropicProvider, OpenAIResponsesProvider])
async def test_a_body_that_is_no_count_is_a_failure(
    server: CannedServer, kind: builtins.type[AnthropicProvider | OpenAIResponsesProvider], answer: Answer, type: str
) -> None:
    server.answer = answer
    async with kind("a key", server.url) as provider:
        with pytest.raises(ProviderError) as raised:
            await provider.count(REQUEST)
    assert (raised.value.type, isinstance(raised.value, TransientError)) == (type, True)


async def test_a_provider_without_counts_returns_none() -> None:
    scripted = ScriptedProvider([])
    assert await count_tokens(scripted, REQUEST) is None
    assert await count_tokens(CallPublisher(scripted), REQUEST) is None


# --- its effect -------------------------------------------------------------------------------------------------------


class Counted(ScriptedProvider):
    """Returns the given count for every request."""

    def __init__(self, count: Callable[[], int | None]) -> None:
        usage = {"input_tokens": 700, "output_tokens": 20}
        super().__init__(lambda _: message_of(text("Said. " * 200), usage=usage))
        self.counted: list[ModelRequest] = []
        self._count = count

    async def count(self, request: ModelRequest) -> int | None:
        self.counted.append(request)
        if self._count is never:
            await asyncio.Event().wait()
        return self._count()


def never() -> int | None:
    raise AssertionError("nobody waits for this")


def busy() -> int | None:
    raise TransientError("overloaded_error", "not now")


async def said_after(harness: Harness, replica: Replica, words: str, after: Asked | None = None) -> Asked:
    asked = await harness.ask(words, after=after, limits=Limits(context_window=1000))
    await harness.finish(replica, asked)
    return asked


async def two_turns(harness: Harness, provider: Counted, words: str) -> Turn:
    """Runs two turns. The first turn had 720 tokens; 800 tokens are too many."""
    async with harness.replica(provider) as replica:
        first = await said_after(harness, replica, "One")
        second = await said_after(harness, replica, words, after=first)
    return await harness.turn(second)


@pytest.mark.parametrize(
    ("count", "summarised"),
    [(800, False), (801, True)],
)
async def test_near_the_limit_the_count_decides(harness: Harness, count: int, summarised: bool) -> None:
    for words in ("x" * 300, "x" * 340):  # by the estimate, only the first text fits
        provider = Counted(lambda: count)
        turn = await two_turns(harness, provider, words)
        assert (turn.rounds[0].stop_reason == COMPACTED) is summarised
        (asked,) = provider.counted
        assert asked == next(made for made in provider.requests if made.call == asked.call) or summarised
        assert asked.messages[-1].blocks[-1].text == words


@pytest.mark.parametrize(("words", "summarised"), [("x" * 30, False), ("x" * 2000, True)])
async def test_far_from_the_limit_there_is_no_count(harness: Harness, words: str, summarised: bool) -> None:
    provider = Counted(lambda: 1)
    turn = await two_turns(harness, provider, words)
    assert (turn.rounds[0].stop_reason == COMPACTED) is summarised
    assert [asked for asked in provider.counted if asked.call and asked.call.round == 1] == []


@pytest.mark.parametrize("count", [busy, never, lambda: None])
async def test_without_a_count_the_estimate_decides(
    harness: Harness, count: Callable[[], int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_COUNT_TIMEOUT", 0.01)
    with capture_logs() as logs:
        turn = await two_turns(harness, provider := Counted(count), "x" * 340)
    assert turn.rounds[0].stop_reason == COMPACTED
    assert len(provider.counted) == 1
    why = {busy: ["overloaded_error"], never: ["timeout"]}.get(count, [])
    assert [line["error"] for line in logs if line["event"] == "tokens.uncounted"] == why
