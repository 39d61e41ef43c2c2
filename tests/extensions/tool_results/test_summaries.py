"""Summaries of results and of conversations. The operator configures a model for them, apart from the turn's model."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.harness import OWNER, POLICY, Asked, Harness, results_of, texts_of
from turnstream.config import Settings
from turnstream.domain.degraded import degraded
from turnstream.domain.errors import ConfigError, TransientError
from turnstream.domain.history import COMPACTED
from turnstream.domain.kinds import SUMMARY
from turnstream.domain.turns import Limits, Turn
from turnstream.engine.worker import WorkerPolicy
from turnstream.extensions.titles import EXTENSION as TITLES
from turnstream.extensions.tool_results.results import ToolResults
from turnstream.extensions.tool_results.summaries import prompt_for
from turnstream.libraries import side_calls
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.llm.provider import Provider
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.setup.parts import check_chosen, check_extensions
from turnstream.tools.policy import Summarise
from turnstream.tools.tool import Tool, ToolError, tool

LONG = "The tide is high at noon. " * 40
WITH_SMALL: WorkerPolicy = replace(POLICY, model=replace(POLICY.model, summary_model="small"))
SPENT = {"input_tokens": 300, "output_tokens": 7}


@tool(read_only=True, summarise=Summarise(above=500))
async def read_tides(place: str = "Brest") -> str:
    """Read the tides."""
    return LONG


@tool(read_only=True, summarise=Summarise(above=500, model="tiny"), max_result_chars=600)
async def read_page() -> str:
    """Read a page."""
    return LONG


@tool(read_only=True, summarise=Summarise(above=5))
async def broken() -> str:
    """Fail."""
    raise ToolError("No page is to be found here.")


@tool(read_only=True)
async def read_result(tool_use_id: str, offset: int = 0) -> str:
    """Read on."""
    return ""


TOOLS: list[Tool] = [read_tides, read_page, broken, read_result]


def route(main: ScriptedProvider, **others: ScriptedProvider) -> Callable[[str], Provider]:
    return lambda model: others.get(model, main)


async def run(
    harness: Harness, name: str, policy: WorkerPolicy = POLICY, **others: ScriptedProvider
) -> tuple[Turn, ScriptedProvider, Asked]:
    main = ScriptedProvider([message_of(tool_use(name, {}, "toolu_1")), message_of(text("At noon."))])
    async with harness.replica(route(main, **others), TOOLS, policy=policy) as replica:
        asked = await harness.ask(tools=TOOLS)
        replica.worker.wake()
        await harness.follow(replica, asked)
        await replica.idle(asked)
    return await harness.turn(asked), main, asked


async def test_a_long_result_is_summarised_by_the_chosen_model_and_kept_whole(harness: Harness) -> None:
    small = ScriptedProvider([message_of(text("High at ", "noon."), usage=SPENT)])
    turn, main, asked = await run(harness, "read_tides", WITH_SMALL, small=small)
    (result,) = results_of(turn).values()
    assert result.text == (
        "[A summary, by small, of a result of 1,040 characters. To read the whole, call read_result with tool_use_id"
        ' "toolu_1".]\n\nHigh at noon.'
    )
    assert main.requests[1].messages[-1].blocks[0].text == result.text
    (prompt,) = small.requests[0].messages[0].blocks
    assert LONG in prompt.text
    assert "read_tides {}" in prompt.text
    assert await ToolResults(harness.database).of_turn(OWNER, asked.chat, asked.turn, "toolu_1") == LONG
    assert turn.usage == {"input_tokens": 320, "output_tokens": 17}, "the summary is counted"
    assert degraded(turn) == ()


async def test_the_policy_of_a_tool_may_name_the_model_and_a_cut_result_is_summarised_whole(harness: Harness) -> None:
    tiny = ScriptedProvider([message_of(text("Noon."))])
    turn, _, _ = await run(harness, "read_page", WITH_SMALL, tiny=tiny)
    (result,) = results_of(turn).values()
    assert result.text.startswith("[A summary, by tiny, of a result of 1,040 characters.")
    assert result.notes is not None
    assert '"cut"' not in result.notes


async def test_without_a_chosen_model_it_is_the_turns_own(harness: Harness) -> None:
    main = ScriptedProvider(
        [message_of(tool_use("read_tides", {}, "a")), message_of(text("Noon.")), message_of(text("So."))]
    )
    async with harness.replica(main, TOOLS) as replica:
        asked = await harness.ask(tools=TOOLS)
        replica.worker.wake()
        await harness.follow(replica, asked)
    assert "by scripted, of a result" in results_of(await harness.turn(asked))["a"].text


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ([TransientError("overloaded_error", "Later.")], "overloaded_error"),
        (message_of(text("  ")), "no_summary"),
        (message_of(text("Half a"), stop_reason="max_tokens"), "no_summary"),
        ([Pause()], "timeout"),
    ],
)
async def test_without_a_summary_the_result_is_as_it_was_and_the_turn_is_degraded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, reply: Reply, reason: str
) -> None:
    monkeypatch.setattr(side_calls, "_TIMEOUT", 0.05)
    turn, _, _ = await run(harness, "read_page", tiny=ScriptedProvider([reply]))
    (result,) = results_of(turn).values()
    assert result.text.startswith(LONG[:600])
    assert "440 of its 1,040 characters are missing" in result.text
    assert [item.what for item in degraded(turn)] == ["cut", "summary_failed"]
    assert f'"summary_failed":"{reason}"' in (result.notes or "")


async def test_a_model_whose_breaker_is_open_is_not_asked_for_summaries(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_calls, "_TIMEOUT", 0.05)
    policy = replace(WITH_SMALL, model=replace(WITH_SMALL.model, breaker=2))
    small = ScriptedProvider([[TransientError("overloaded_error", "Later.")], [Pause()]])
    rounds = [message_of(tool_use("read_tides", {"place": place}, place)) for place in "abc"]
    said = message_of(text("Noon. " * 900), usage={"input_tokens": 1400})
    main = ScriptedProvider([*rounds, said, message_of(text("In brief.")), answer()])
    async with harness.replica(route(main, small=small), TOOLS, policy=policy) as replica:
        asked = await harness.ask(tools=TOOLS)
        turn = await harness.finish(replica, asked)
        after = await harness.ask("And?", after=asked, limits=Limits(context_window=1500))
        later = await harness.finish(replica, after)
    notes = [results_of(turn)[place].notes or "" for place in "abc"]
    assert [re.findall(r'"summary_failed":"(\w+)"', note) for note in notes] == [
        ["overloaded_error"],
        ["timeout"],
        ["breaker_open"],
    ]
    assert len(small.requests) == 2
    assert [round.model for round in later.rounds if round.stop_reason == COMPACTED] == ["scripted"]


def answer() -> Reply:
    return message_of(text("Done."))


async def test_a_failure_is_not_summarised(harness: Harness) -> None:
    turn, _, _ = await run(harness, "broken")
    assert results_of(turn)["toolu_1"].text == "No page is to be found here."


def test_a_very_long_result_is_read_in_part() -> None:
    prompt = prompt_for("look", "{}", "x" * 300_000)
    assert "[100,000 further characters are not shown]" in prompt
    assert len(prompt) < 202_000


# --- conversations ---------------------------------------------------------------------------------------------------


async def compacted(harness: Harness, main: ScriptedProvider, small: ScriptedProvider) -> Turn:
    asked: Asked | None = None
    async with harness.replica(route(main, small=small), policy=WITH_SMALL) as replica:
        for words in ("Tell me all.", "And?"):
            asked = await harness.ask(words, after=asked, limits=Limits(context_window=1500))
            replica.worker.wake()
            await harness.follow(replica, asked)
    assert asked is not None
    return await harness.turn(asked)


def answers(*replies: str) -> ScriptedProvider:
    return ScriptedProvider([message_of(text(reply), usage={"input_tokens": 1400}) for reply in replies])


async def test_a_conversation_is_summarised_by_the_chosen_model(harness: Harness) -> None:
    main, small = answers("Well. " * 900, "Done."), answers("In short: x.")
    turn = await compacted(harness, main, small)
    assert [(round.stop_reason, round.model) for round in turn.rounds] == [
        (COMPACTED, "small"),
        ("end_turn", "scripted"),
    ]
    assert [block.text for block in turn.blocks if block.type == SUMMARY] == ["In short: x."]
    assert degraded(turn) == (), "another model for a summary is no fallback"


async def test_after_a_failure_of_the_chosen_model_the_model_of_the_turn_writes_the_summary(harness: Harness) -> None:
    small = ScriptedProvider([[TransientError("overloaded_error", "Later.")]])
    turn = await compacted(harness, answers("Well. " * 900, "In brief.", "Done."), small)
    sealed = [(round.stop_reason, round.model) for round in turn.rounds if round.sealed]
    assert sealed == [(COMPACTED, "scripted"), ("end_turn", "scripted")]
    assert texts_of(turn) == ["Done."]


async def test_a_model_that_is_not_there_is_refused_at_the_start() -> None:
    models = Models([ProviderModels(ScriptedProvider([]), [Model("scripted")])])

    async def check(settings: Settings) -> None:
        check_chosen(models, settings)
        await check_extensions([TITLES], settings, models)

    for setting in ("summary_model", "title_model"):
        given: dict[str, Any] = {setting: "small"}
        with pytest.raises(ConfigError, match=f"TURNSTREAM_{setting.upper()} must be one of scripted"):
            await check(Settings(_env_file=None, **given))
    await check(Settings(_env_file=None))
