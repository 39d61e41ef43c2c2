"""The calls of hooks with which an embedding program follows its turns. The turns do not depend on these hooks."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from tests.support.harness import OWNER, Asked, Harness, results_of, texts_of
from turnstream.api.services import Services
from turnstream.config import Settings
from turnstream.domain.degraded import Degraded, degraded
from turnstream.domain.turns import Turn
from turnstream.engine.hooks import AfterRound, AfterTool, BeforeTool, Hooks, TurnEnded
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.main import running
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.setup.parts import Given
from turnstream.tools.tool import Tool, ToolError, tool
from turnstream.tools.toolset import Toolset

PAGE = Path(__file__).parents[2] / "docs/hooks.md"
TOLD = ("before_tool", "after_tool", "after_round", "turn_ended")


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


@tool()
async def act() -> str:
    """Act."""
    raise ToolError("Not today.")


class Diary(Hooks):
    """Records each call of a hook, with the rows at that moment."""

    def __init__(self) -> None:
        self.harness: Harness | None = None
        self.events: list[Any] = []
        self.stored: list[Turn] = []
        self.ended = asyncio.Event()

    async def before_tool(self, event: BeforeTool) -> None:
        await self._note(event)

    async def after_tool(self, event: AfterTool) -> None:
        await self._note(event)

    async def after_round(self, event: AfterRound) -> None:
        await self._note(event)

    async def turn_ended(self, event: TurnEnded) -> None:
        await self._note(event)
        self.ended.set()

    async def _note(self, event: Any) -> None:
        assert self.harness is not None
        place = len(self.events)  # from here on, hooks of parallel calls may overtake this hook
        self.events.append(event)
        self.stored.append(event.turn)
        self.stored[place] = await self.harness.turn(Asked(event.turn.chat_id, event.turn.id))

    @property
    def told(self) -> list[str]:
        return [_said(event) for event in self.events]


class Broken(Hooks):
    async def before_tool(self, event: BeforeTool) -> None:
        raise LookupError("before_tool")

    async def after_tool(self, event: AfterTool) -> None:
        raise LookupError("after_tool")

    async def after_round(self, event: AfterRound) -> None:
        raise LookupError("after_round")

    async def turn_ended(self, event: TurnEnded) -> None:
        raise LookupError("turn_ended")


def _said(event: Any) -> str:
    match event:
        case BeforeTool():
            return f"before {event.call.name}"
        case AfterTool():
            return f"after {event.call.name}: {event.outcome.kind}"
        case AfterRound():
            return f"round {event.round.number}: {event.round.stop_reason}"
        case _:
            return f"{event.turn.status}: {event.turn.stop_reason}"


@asynccontextmanager
async def embedded(
    harness: Harness, replies: Iterable[Reply], hooks: Sequence[Hooks], tools: Sequence[Tool] = (look, act)
) -> AsyncIterator[Services]:
    """A complete server, but without a socket."""
    for hook in hooks:
        if isinstance(hook, Diary):
            hook.harness = harness
    given: dict[str, Any] = {"database_url": harness.url, "model": "scripted", "port": 0}
    models = Models([ProviderModels(ScriptedProvider(replies), ["scripted"])])
    async with running(Settings(_env_file=None, **given), Given(models, Toolset(tools), hooks=hooks)) as services:
        yield services


async def finished(harness: Harness, replies: Iterable[Reply], *hooks: Hooks) -> Turn:
    """Runs a turn. Returns it when every hook has seen its end."""
    asked, last = await harness.ask(tools=[look, act]), Diary()
    async with embedded(harness, replies, [*hooks, last]) as services:
        services.live.wake()
        await last.ended.wait()
    return await harness.turn(asked)


def called() -> list[Reply]:
    calls = [tool_use("look", {}, "toolu_1"), tool_use("act", {}, "toolu_2")]
    return [message_of(*calls, stop_reason="tool_use"), message_of(text("There."))]


def failures() -> dict[str, float]:
    return {hook: REGISTRY.get_sample_value("turnstream_hook_failures_total", {"hook": hook}) or 0 for hook in TOLD}


async def test_hooks_are_called_for_every_tool_call_and_round_and_for_the_end(harness: Harness) -> None:
    diary = Diary()
    await finished(harness, called(), diary)
    assert sorted(diary.told) == sorted(
        [
            "before look",
            "after look: ok",
            "round 1: tool_use",
            "before act",
            "after act: error",
            "round 2: end_turn",
            "complete: end_turn",
        ]
    )
    told = diary.told
    for first, then in [
        ("before look", "after look: ok"),
        ("round 1: tool_use", "before act"),
        ("before act", "after act: error"),
        ("after act: error", "round 2: end_turn"),
        ("after look: ok", "round 2: end_turn"),
        ("round 2: end_turn", "complete: end_turn"),
    ]:
        assert told.index(first) < told.index(then)
    assert {event.owner for event in diary.events} == {OWNER}


async def test_hooks_are_called_after_their_event_is_stored(harness: Harness) -> None:
    diary = Diary()
    turn = await finished(harness, called(), diary)
    for event, stored in zip(diary.events, diary.stored, strict=True):
        match event:
            case AfterTool():
                assert results_of(stored)[event.call.tool_use_id or ""].text == event.outcome.text
            case AfterRound():
                assert event.round in stored.rounds
                assert event.round.sealed
            case TurnEnded():
                assert event.turn.status == stored.status == "complete"
                assert event.turn.blocks == turn.blocks
            case _:
                assert event.call.tool_use_id not in results_of(stored)


async def test_hooks_that_raise_are_logged_counted_and_change_nothing(harness: Harness) -> None:
    before, diary = failures(), Diary()
    with capture_logs() as lines:
        turn = await finished(harness, called(), Broken(), diary)
    assert (turn.status, texts_of(turn)) == ("complete", ["There."])
    assert {id: block.text for id, block in results_of(turn).items()} == {"toolu_1": "seen", "toolu_2": "Not today."}
    assert len(diary.events) == 7
    assert turn.hook_failures == 7
    assert degraded(turn)[-1] == Degraded("hook_failures")
    assert [stored.hook_failures for stored in diary.stored][-1] == 6, "the last one is counted after the end"
    wanted = {"before_tool": 2, "after_tool": 2, "after_round": 2, "turn_ended": 1}
    assert {hook: count - before[hook] for hook, count in failures().items()} == wanted
    failed = [line for line in lines if line["event"] == "hook.failed"]
    assert [line["log_level"] for line in failed] == ["error"] * 7
    assert {line["method"] for line in failed} == {f"Broken.{name}" for name in TOLD}


async def test_text_continues_while_a_hook_delays_an_early_call(harness: Harness) -> None:
    held, go = asyncio.Event(), asyncio.Event()

    class Slow(Hooks):
        async def before_tool(self, event: BeforeTool) -> None:
            held.set()
            await go.wait()

    pause = Pause()
    message = list(message_of(tool_use("look", {}, "toolu_1"), text("Meanwhile."), stop_reason="tool_use"))
    asked, diary = await harness.ask(tools=[look]), Diary()
    async with embedded(harness, [[*message[:-1], pause, *message[-1:]], *called()[1:]], [Slow(), diary]) as services:
        services.live.wake()
        await held.wait()
        await pause.reached.wait()
        view = services.live.directory.running(asked.turn)
        assert view is not None
        shown = view.block_being_written()  # shown until the end of the reply identifies it as the last block
        assert shown is None or shown.text == "Meanwhile."
        assert texts_of(view.turn) == ([] if shown else ["Meanwhile."])
        assert diary.events == [], "the second hook is not told before the first one is done"
        go.set()
        pause.go.set()
        await diary.ended.wait()


async def test_a_turn_that_is_cancelled_ends_for_its_hooks_too(harness: Harness) -> None:
    pause, diary = Pause(), Diary()
    message = list(message_of(text("Half a ", "sentence")))
    asked = await harness.ask(tools=[look])
    async with embedded(harness, [[*message[:3], pause]], [diary]) as services:
        services.live.wake()
        await pause.reached.wait()
        await services.storage.turns.cancel(OWNER, asked.chat, asked.turn)
        await services.live.cancel(asked.turn)
        await diary.ended.wait()
    assert diary.told == ["round 1: cancelled", "cancelled: cancelled"]
    assert [turn.status for turn in diary.stored] == ["cancelled", "cancelled"], "a hook does not hold up the end"


async def test_a_cancellation_that_comes_too_late_does_not_cut_the_last_hook_short(harness: Harness) -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    class Thorough(Hooks):
        done = False

        async def turn_ended(self, event: TurnEnded) -> None:
            reached.set()
            await go.wait()
            self.done = True

    hook, diary = Thorough(), Diary()
    asked = await harness.ask()
    async with embedded(harness, [message_of(text("There."))], [hook, diary]) as services:
        services.live.wake()
        await reached.wait()
        await services.live.cancel(asked.turn)
        go.set()
        await diary.ended.wait()
    assert hook.done


async def test_the_hooks_of_the_example_get_the_events_of_the_page(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    page: dict[str, Any] = {"__name__": "page"}
    monkeypatch.chdir(Path(__file__).parents[2])
    exec(compile(code, "docs/hooks.md", "exec"), page)
    await finished(harness, called(), page["audit"])
    calls = {f"{OWNER} called look: ok", f"{OWNER} called act: error"}
    assert set(page["audit"].lines) == calls | {"round 1: 5 tokens", "round 2: 5 tokens", "complete: end_turn"}
