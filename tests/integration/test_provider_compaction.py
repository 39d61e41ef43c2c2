"""Conversations that the provider compacts by itself."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.compacting import Compacting
from tests.integration.recordings import needs_recordings, read
from tests.support.canned import Answer, canned_server, served
from tests.support.harness import TICK, Asked, Harness, Replica
from turnstream.api.views import round_out
from turnstream.domain.history import COMPACTED
from turnstream.domain.kinds import SHORTENED, SUMMARY
from turnstream.domain.rounds import Prices, Round
from turnstream.domain.turns import Limits, Turn, TurnError
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

MODEL = "claude-opus-5-5"
LIMITS = Limits(
    context_window=70_000, max_rounds=20, compaction="provider", provider_edits=("context_editing", "compaction")
)
LONG = "Well. " * 10_000  # 15,000 tokens


@pytest.fixture
async def server() -> AsyncIterator[Compacting]:
    async with served(Compacting()) as server:
        yield server
        assert server.problems == []


@pytest.fixture
async def provider(server: Compacting) -> AsyncIterator[AnthropicProvider]:
    async with AnthropicProvider("a key", server.url) as provider:
        yield provider


async def say(
    harness: Harness,
    replica: Replica,
    words: str,
    after: Asked | None,
    limits: Limits = LIMITS,
    model: str = MODEL,
    **request: Any,
) -> tuple[Asked, Turn]:
    asked = await harness.ask(words, after=after, limits=limits, model=model, **request)
    turn = await harness.finish(replica, asked)
    assert turn.status == "complete", turn.error
    return asked, turn


async def conversation(harness: Harness, replica: Replica, turns: int) -> tuple[Asked, list[Turn]]:
    asked, answers = None, []
    for number in range(turns):
        asked, turn = await say(harness, replica, f"This is fact {number}. {LONG}", asked)
        answers.append(turn)
    assert asked is not None
    return asked, answers


def made_by_us(turns: list[Turn]) -> list[str]:
    ours = [block.type for turn in turns for block in turn.blocks if block.type in {SUMMARY, SHORTENED}]
    return ours + [COMPACTED for turn in turns for round in turn.rounds if round.stop_reason == COMPACTED]


async def test_the_provider_summarises_and_gets_its_summaries_back_unchanged(
    harness: Harness, server: Compacting, provider: AnthropicProvider
) -> None:
    async with harness.replica(provider) as replica:
        _, turns = await conversation(harness, replica, 9)
    assert len(server.compactions) == 2
    assert made_by_us(turns) == []
    assert len(server.requests) == 9, "nobody was asked to count"
    assert {f"fact {number}" for number in range(9)} <= {*server.known[-1]}
    assert max(server.sizes) <= 56_000
    found = [block for turn in turns for block in turn.blocks if block.type == "compaction"]
    assert [block.text for block in found] == [json.loads(block)["content"] for block in server.compactions]
    assert server.requests[-1].body.count(server.compactions[0]) == 1
    last = json.loads(server.requests[-1].body)
    assert last["context_management"]["edits"][1]["trigger"] == {"type": "input_tokens", "value": 56_000}
    compacted = next(turn for turn in turns if any(block.type == "compaction" for block in turn.blocks))
    assert Prices(1.0, 1.0).cost_of(compacted.rounds[0].usage) * 1_000_000 >= 56_100


async def test_the_provider_clears_results_and_reports_them(
    harness: Harness, server: Compacting, provider: AnthropicProvider
) -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return f"fact 7 {LONG[:30_000]}"

    server.pages = 9
    tools = Toolset([look], max_result_chars=40_000, patience=TICK)
    async with harness.replica(provider, toolset=tools) as replica:
        asked = await harness.ask("Look", limits=LIMITS, tools=[look], model=MODEL)
        turn = await harness.finish(replica, asked)
    assert (turn.status, made_by_us([turn]), server.compactions) == ("complete", [], [])
    told = [round_out(round).applied_edits for round in turn.rounds]
    assert [edit["cleared_tool_uses"] for edits in told[-3:] for edit in edits] == [4, 5, 6]
    assert told[0] == []
    assert server.requests[-1].body.count(b"[cleared]") == 0, "what it leaves out is sent all the same"


async def test_after_a_refusal_of_the_provider_the_server_shortens_the_conversation(
    harness: Harness, server: Compacting, provider: AnthropicProvider
) -> None:
    server.window = 40_000
    async with harness.replica(provider) as replica:
        _, turns = await conversation(harness, replica, 4)
    assert made_by_us(turns) == [SUMMARY, COMPACTED]
    assert all(json.loads(request.body).get("context_management") for request in server.requests)
    assert b"The conversation so far, in a summary" in server.requests[-1].body


@pytest.mark.parametrize("pauses", [False, True])
async def test_summaries_that_the_turns_own_parameters_request_go_back_as_they_came(
    harness: Harness, server: Compacting, provider: AnthropicProvider, pauses: bool
) -> None:
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 56_000}}
    params = {"context_management": {"edits": [{**edit, "pause_after_compaction": pauses}]}}
    own = Limits(context_window=200_000)
    asked, turns = None, []
    async with harness.replica(provider) as replica:
        for number in range(9):
            words = f"This is fact {number}. {LONG}"
            asked, turn = await say(harness, replica, words, asked, own, params=params)
            turns.append(turn)
    assert len(server.compactions) == 2
    assert made_by_us(turns) == []
    assert len(server.requests) == 9 + 2 * pauses, "each request is compacted once"
    assert {f"fact {number}" for number in range(9)} <= {*server.known[-1]}
    assert [block.text for turn in turns for block in turn.blocks if block.type == "text"] == ["I will remember."] * 9
    assert [round.stop_reason for turn in turns for round in turn.rounds].count("compaction") == 2 * pauses
    assert {turn.stop_reason for turn in turns} == {"end_turn"}


async def test_a_provider_that_does_nothing_but_pause_ends_the_turn_with_an_error(
    harness: Harness, server: Compacting, provider: AnthropicProvider
) -> None:
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 0}, "pause_after_compaction": True}
    async with harness.replica(provider) as replica:
        params = {"context_management": {"edits": [edit]}}
        asked = await harness.ask("Hello", limits=Limits(max_rounds=2, max_recoveries=1), model=MODEL, params=params)
        turn = await harness.finish(replica, asked)
    assert turn.error == TurnError(
        "not_finished", "The provider paused its reply 3 times in a row (compaction), and did not finish it."
    )
    assert turn.status == "error"


async def test_a_turn_that_does_not_request_them_sends_the_summaries_of_its_model_back(
    harness: Harness, server: Compacting, provider: AnthropicProvider
) -> None:
    async with harness.replica(provider) as replica:
        asked, _ = await conversation(harness, replica, 5)
        asked, turn = await say(harness, replica, "And now?", asked, Limits(context_window=70_000))
    assert [round.stop_reason for round in turn.rounds] == ["end_turn"]
    assert server.requests[-1].body.count(server.compactions[0]) == 1
    assert "context_management" not in json.loads(server.requests[-1].body)
    assert server.requests[-1].headers["anthropic-beta"] == "compact-2026-01-12"


async def test_another_model_is_sent_none_of_its_summaries(
    harness: Harness, server: Compacting, provider: AnthropicProvider
) -> None:
    own = Limits(context_window=70_000)
    async with harness.replica(provider) as replica:
        asked, _ = await conversation(harness, replica, 5)
        assert len(server.compactions) == 1
        asked, turn = await say(harness, replica, "And now?", asked, own, "claude-haiku-4-5")
    assert [round.stop_reason for round in turn.rounds] == [COMPACTED, "end_turn"]
    assert b'"type":"compaction"' not in server.requests[-1].body
    assert "context_management" not in json.loads(server.requests[-1].body)
    assert "anthropic-beta" not in server.requests[-1].headers
    assert server.known[-2][0] == "fact 0", "what was summarised there is read again where it is summarised here"


@pytest.mark.parametrize(
    "data", [None, "[]", '{"context_management":[]}', '{"context_management":{"applied_edits":{}}}', "{broken"]
)
def test_an_unknown_form_of_reported_edits_is_ignored(data: str | None) -> None:
    assert round_out(Round(1, 1, data=data)).applied_edits == []


@needs_recordings
async def test_a_recorded_compaction_goes_back_as_it_came(harness: Harness) -> None:
    async with canned_server() as server, AnthropicProvider("a key", server.url) as provider:
        server.answer = Answer(read("anthropic/sdkpy-compaction-response.sse"))
        async with harness.replica(provider) as replica:
            asked, turn = await say(harness, replica, "Hello", None)
            await say(harness, replica, "And?", asked)
    assert [block.type for block in turn.blocks] == ["compaction", "text"]
    secret = "EpwBCioIDxgCEAEYASJALd_opaque_compaction_payload"
    sent_back = f'{{"type":"compaction","content":"Earlier conversation summarized.","encrypted_content":"{secret}"}}'
    assert sent_back.encode() in server.requests[-1].body


@needs_recordings
@pytest.mark.parametrize("name", ["langchain-context-management-1", "vercel-anthropic-combined-context-editing-1"])
async def test_recorded_edits_are_reported(harness: Harness, name: str) -> None:
    async with canned_server() as server, AnthropicProvider("a key", server.url) as provider:
        server.answer = Answer(read(f"anthropic/{name}.sse"))
        async with harness.replica(provider) as replica:
            _, turn = await say(harness, replica, "Hello", None)
    assert '"context_management":{"applied_edits":[]}' in (turn.rounds[0].data or "")
