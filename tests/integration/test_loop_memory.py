"""What a turn's rows remember: the number of its calls, the results of identical calls, failures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.harness import OWNER, Harness, results_of, texts_of
from turnstream.domain.blocks import Block
from turnstream.domain.degraded import ALL_TOOLS_FAILED, Degraded, degraded
from turnstream.domain.turns import Limits, Turn
from turnstream.extensions.tool_results.read_result import result_tools
from turnstream.extensions.tool_results.results import ToolResults
from turnstream.llm.conversation.messages import GIVEN_UP
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.tools.tool import Tool, ToolError, tool, tools_of

HERE = "this machine:8000"


@dataclass
class Shelf:
    """Tools that count their runs. The first runs of `look` raise the exceptions in `at_first`."""

    seen: list[str] = field(default_factory=list)
    at_first: list[Exception] = field(default_factory=list)

    @tool(read_only=True, memo=True)
    async def look(self, what: str = "it") -> str:
        """Look at something."""
        self.seen.append(what)
        if self.at_first:
            raise self.at_first.pop(0)
        return f"seen {what} ({len(self.seen)})"

    @tool(read_only=True)
    async def peek(self, what: str = "it") -> str:
        """Look without remembering."""
        self.seen.append(what)
        return f"peeked ({len(self.seen)})"

    @tool()
    async def put(self) -> str:
        """Has an effect."""
        return "put"

    @tool(calls_per_turn=2)
    async def ring(self) -> str:
        """Ring, twice at most."""
        self.seen.append("ring")
        return "rung"


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def calls(*named: tuple[str, str] | tuple[str, str, Mapping[str, Any]]) -> Reply:
    """Returns a message that calls tools by name and id."""
    return message_of(*(tool_use(name, dict(*given), id) for name, id, *given in named))


def answer(content: str = "There.") -> Reply:
    return message_of(text(content))


def notes_of(block: Block) -> dict[str, Any]:
    times = {"started_at", "seconds"}
    return {name: note for name, note in json.loads(block.notes or "{}").items() if name not in times}


async def run(harness: Harness, tools: Sequence[Tool], *replies: Reply, limits: Limits | None = None) -> Turn:
    async with harness.replica(ScriptedProvider([*replies, answer()]), tools) as replica:
        return await harness.finish(replica, await harness.ask(tools=tools, limits=limits))


# --- identical calls -------------------------------------------------------------------------------------------------


async def test_an_identical_call_of_a_later_round_is_answered_from_the_memo(harness: Harness, shelf: Shelf) -> None:
    turn = await run(
        harness,
        tools_of(shelf),
        calls(("look", "a")),
        calls(("look", "b"), ("look", "c", {"what": "that"})),
        calls(("look", "d")),
    )
    assert shelf.seen == ["it", "that"]
    assert {id: result.text for id, result in results_of(turn).items()} == {
        "a": "seen it (1)",
        "b": "seen it (1)",
        "c": "seen that (2)",
        "d": "seen it (1)",
    }
    assert {id: notes_of(result) for id, result in results_of(turn).items()} == {
        "a": {},
        "b": {"memo": "a"},
        "c": {},
        "d": {"memo": "b"},
    }
    assert degraded(turn) == (), "a result from memory is as good as any"


async def test_a_tool_without_a_memo_is_run_every_time(harness: Harness, shelf: Shelf) -> None:
    await run(harness, tools_of(shelf), calls(("peek", "a"), ("peek", "b")), calls(("peek", "c")))
    assert shelf.seen == ["it"] * 3


async def test_identical_calls_in_one_reply_are_run_once(harness: Harness, shelf: Shelf) -> None:
    turn = await run(harness, tools_of(shelf), calls(("look", "a"), ("look", "b"), ("look", "c")))
    assert shelf.seen == ["it"]
    results = results_of(turn)
    assert {result.text for result in results.values()} == {"seen it (1)"}
    assert {id: notes_of(result) for id, result in results.items()} == {"a": {}, "b": {"memo": "a"}, "c": {"memo": "a"}}


async def test_identical_calls_are_run_once_even_if_the_first_ends_before_the_reply(
    harness: Harness, shelf: Shelf
) -> None:
    """Read-only tools start before the reply is complete."""
    pause = Pause()
    whole = list(calls(("look", "a"), ("look", "b")))
    provider = ScriptedProvider([[*whole[:-1], pause, whole[-1]], answer()])
    async with harness.replica(provider, tools_of(shelf)) as replica:
        asked = await harness.ask(tools=tools_of(shelf))
        replica.worker.wake()
        await pause.reached.wait()
        assert shelf.seen == ["it"], "the model still talks"
        pause.go.set()
        turn = await harness.finish(replica, asked)
    assert shelf.seen == ["it"]
    assert {id: notes_of(result) for id, result in results_of(turn).items()} == {"a": {}, "b": {"memo": "a"}}


async def test_a_call_that_is_identical_to_a_failed_one_is_run_itself(harness: Harness, shelf: Shelf) -> None:
    shelf.at_first = [ToolError("not now")]
    turn = await run(harness, tools_of(shelf), calls(("look", "a"), ("look", "b")))
    results = results_of(turn)
    assert (results["a"].is_error, results["b"].text, notes_of(results["b"])) == (True, "seen it (2)", {})


async def test_a_failure_is_not_remembered_in_the_next_round(harness: Harness, shelf: Shelf) -> None:
    shelf.at_first = [ToolError("not now")]
    turn = await run(harness, tools_of(shelf), calls(("look", "a")), calls(("look", "b")))
    assert results_of(turn)["b"].text == "seen it (2)"


async def test_no_memo_is_used_across_a_call_that_may_have_changed_something(harness: Harness, shelf: Shelf) -> None:
    turn = await run(
        harness, tools_of(shelf), calls(("look", "a")), calls(("put", "b")), calls(("look", "c")), calls(("look", "d"))
    )
    assert shelf.seen == ["it", "it"]
    assert notes_of(results_of(turn)["d"]) == {"memo": "c"}


async def test_a_result_from_before_a_crash_is_remembered(harness: Harness, shelf: Shelf) -> None:
    pause = Pause()
    tools = tools_of(shelf)
    asked = await harness.ask(tools=tools)
    async with harness.replica(ScriptedProvider([calls(("look", "a")), [pause]]), tools, address=HERE) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        await replica.kill()
    async with harness.replica(ScriptedProvider([calls(("look", "b")), answer()]), tools, address=HERE) as replica:
        turn = await harness.finish(replica, asked)
    assert (turn.attempt, shelf.seen, notes_of(results_of(turn)["b"])) == (2, ["it"], {"memo": "a"})


# --- how often -------------------------------------------------------------------------------------------------------


async def test_the_calls_of_a_turn_are_counted_over_rounds(harness: Harness, shelf: Shelf) -> None:
    turn = await run(harness, tools_of(shelf), calls(("ring", "a")), calls(("ring", "b"), ("ring", "c")))
    assert shelf.seen == ["ring", "ring"]
    refused = results_of(turn)["c"]
    assert refused.text == "This call was not run: ring has reached its limit of 2 calls in one turn."
    assert (refused.is_error, notes_of(refused)) == (True, {"calls_per_turn": 2})
    assert degraded(turn) == (Degraded("calls_per_turn", refused.index, "ring"),)


async def test_the_calls_of_a_turn_are_counted_over_crashes(harness: Harness, shelf: Shelf) -> None:
    pause = Pause()
    tools = tools_of(shelf)
    asked = await harness.ask(tools=tools)
    async with harness.replica(ScriptedProvider([calls(("ring", "a")), [pause]]), tools, address=HERE) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        await replica.kill()
    replies = [calls(("ring", "b")), calls(("ring", "c")), answer()]
    async with harness.replica(ScriptedProvider(replies), tools, address=HERE) as replica:
        turn = await harness.finish(replica, asked)
    assert turn.attempt == 2
    assert {id: result.is_error for id, result in results_of(turn).items()} == {"a": False, "b": False, "c": True}
    assert shelf.seen == ["ring", "ring"]


async def test_another_turn_may_call_as_often_again(harness: Harness, shelf: Shelf) -> None:
    tools = tools_of(shelf)
    provider = ScriptedProvider([calls(("ring", "a"), ("ring", "b")), answer(), calls(("ring", "c")), answer()])
    async with harness.replica(provider, tools) as replica:
        first = await harness.ask(tools=tools)
        await harness.finish(replica, first)
        turn = await harness.finish(replica, await harness.ask(after=first, tools=tools))
    assert results_of(turn)["c"].text == "rung"


# --- what is kept ----------------------------------------------------------------------------------------------------


@tool(read_only=True)
async def flood() -> str:
    """Return 5,000 characters, of which the model receives 1,000."""
    return "".join(f"{number:05}" for number in range(1000))


WHOLE = "".join(f"{number:05}" for number in range(1000))


async def test_a_result_that_was_cut_is_kept_whole_and_read_on_by_the_model(harness: Harness) -> None:
    results = ToolResults(harness.database)
    tools = [flood, *result_tools(results)]
    reading = calls(("read_result", "r", {"tool_use_id": "a", "offset": 1000, "length": 500}))
    turn = await run(harness, tools, calls(("flood", "a")), reading)
    cut, read = results_of(turn)["a"], results_of(turn)["r"]
    assert cut.text.startswith(WHOLE[:1000])
    assert 'call read_result with tool_use_id "a" and offset 1000' in cut.text
    assert notes_of(cut) == {"cut": {"shown": 1000, "of": 5000}}
    assert degraded(turn) == (Degraded("cut", cut.index, "flood"),)
    assert WHOLE[1000:1500] in read.text
    assert WHOLE[1500:1505] not in read.text
    assert await results.of_turn(OWNER, turn.chat_id, turn.id, "a") == WHOLE
    assert await results.of_turn(OWNER, turn.chat_id, turn.id, "r") == read.text, "what was not cut is whole as it is"
    assert await results.whole(turn.id, "r") == read.text


async def test_a_result_that_was_cut_is_read_on_in_a_later_turn(harness: Harness) -> None:
    tools = [flood, *result_tools(ToolResults(harness.database))]
    reading = calls(("read_result", "r", {"tool_use_id": "a", "offset": 4990}))
    provider = ScriptedProvider([calls(("flood", "a")), answer(), reading, answer()])
    async with harness.replica(provider, tools) as replica:
        first = await harness.ask(tools=tools)
        await harness.finish(replica, first)
        turn = await harness.finish(replica, await harness.ask(after=first, tools=tools))
        stranger = await harness.ask()
    assert "0099800999" in results_of(turn)["r"].text
    assert await ToolResults(harness.database).whole(stranger.turn, "a") is None, "another chat sees nothing of it"


# --- what failed -----------------------------------------------------------------------------------------------------


@tool()
async def fail() -> str:
    """Fail."""
    raise ToolError("no")


def stubborn(request: ModelRequest) -> Reply:
    """A model that calls the failing tool for as long as the request allows tools."""
    return calls(("fail", f"call {len(request.messages)}")) if request.may_use_tools else answer("I could not.")


def last_words(request: ModelRequest) -> list[str]:
    return [block.text for block in request.messages[-1].blocks]


async def test_after_rounds_of_failures_the_model_answers_without_tools(harness: Harness) -> None:
    provider = ScriptedProvider(stubborn)
    async with harness.replica(provider, [fail]) as replica:
        limits = Limits(max_rounds=9, max_failed_rounds=2)
        turn = await harness.finish(replica, await harness.ask(tools=[fail], limits=limits))
    assert [request.may_use_tools for request in provider.requests] == [True, True, False]
    assert [last_words(request) for request in provider.requests[1:]] == [["no"], ["no", GIVEN_UP]]
    assert (turn.stop_reason, texts_of(turn)) == ("end_turn", ["I could not."])
    assert degraded(turn) == (Degraded(ALL_TOOLS_FAILED),)


async def test_a_turn_whose_tools_recovered_is_not_degraded(harness: Harness, shelf: Shelf) -> None:
    turn = await run(
        harness,
        [fail, *tools_of(shelf)],
        calls(("fail", "a")),
        calls(("look", "b")),
        limits=Limits(max_failed_rounds=2),
    )
    assert degraded(turn) == ()


# --- what must be called ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "look"}])
async def test_tool_choice_applies_to_the_first_round_only(
    harness: Harness, shelf: Shelf, choice: dict[str, str]
) -> None:
    provider = ScriptedProvider([calls(("look", "a")), calls(("put", "b")), answer()])
    params = {"max_tokens": 9, "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    async with harness.replica(provider, tools_of(shelf)) as replica:
        await harness.finish(replica, await harness.ask(tools=tools_of(shelf), params=params))
    free = {"type": "auto", "disable_parallel_tool_use": True}
    choices = [request.params["tool_choice"] for request in provider.requests]
    assert choices == [params["tool_choice"], free, free]
    assert {request.params["max_tokens"] for request in provider.requests} == {9}


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "none"}])
async def test_a_choice_that_forces_nothing_holds_for_every_round(
    harness: Harness, shelf: Shelf, choice: dict[str, str]
) -> None:
    provider = ScriptedProvider([calls(("look", "a")), answer()])
    async with harness.replica(provider, tools_of(shelf)) as replica:
        await harness.finish(replica, await harness.ask(tools=tools_of(shelf), params={"tool_choice": choice}))
    assert [request.params["tool_choice"] for request in provider.requests] == [choice, choice]
