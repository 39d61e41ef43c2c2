"""The loop of model calls and tools, with all the ways it can end. Rows and workers are real, models are scripted."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from tests.support.harness import Harness, results_of, texts_of
from turnstream.api.resolve import Defaults, Resolver
from turnstream.api.schemas.requests import TurnOptions
from turnstream.domain.chats import Chat
from turnstream.domain.turns import Limits, RoundLimitPolicy, TurnRequest
from turnstream.kit.ids import new_id
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.llm.provider import ModelRequest, Part
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, thinking, tool_use
from turnstream.tools.tool import Outcome, ToolContext, ToolError, tool
from turnstream.tools.toolset import Toolset

EMPTY = '{"type":"object"}'


@tool(read_only=True)
async def look(what: str = "it") -> str:
    """Look at something."""
    return f"seen {what}"


@tool()
async def refuse() -> str:
    """Say no."""
    raise ToolError("There is no tide today.")


@tool()
async def explode() -> str:
    """Break."""
    raise ValueError("the password is hunter2")


@tool(timeout=0.01)
async def hang() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


@tool()
async def flood() -> str:
    """Return a megabyte."""
    return "x" * 1_000_000


def calls(*names: str) -> Reply:
    """Returns a message that calls these tools. The id of each call is its place."""
    return message_of(text("Let me see."), *(tool_use(name, {}, f"{place}") for place, name in enumerate(names)))


def answer(content: str = "There.") -> Reply:
    return message_of(text(content))


def ending(stop_reason: str) -> Sequence[Part]:
    """Returns the last batch of a message."""
    *_, last = message_of(stop_reason=stop_reason)
    return last


async def test_a_model_that_calls_no_tools_answers(harness: Harness) -> None:
    async with harness.replica(ScriptedProvider([message_of(thinking("hm"), text("Ahoy", "!"))])) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.status, turn.stop_reason, turn.attempt) == ("complete", "end_turn", 1)
    assert [(block.type, block.text) for block in turn.blocks] == [("thinking", "hm"), ("text", "Ahoy!")]


# --- tools -----------------------------------------------------------------------------------------------------------


async def test_five_rounds_of_three_tools_that_run_side_by_side_end_in_an_answer(harness: Harness) -> None:
    together = asyncio.Barrier(3)

    @tool()
    async def meet(name: str) -> str:
        """Go on only when three of us are here."""
        await together.wait()
        return f"met {name}"

    def reply(number: int) -> Reply:
        names = [f"{number}{letter}" for letter in "abc"]
        return message_of(text(f"Round {number}."), *(tool_use("meet", {"name": name}, name) for name in names))

    provider = ScriptedProvider([*map(reply, range(1, 6)), answer()])
    async with harness.replica(provider, [meet]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[meet], limits=Limits(max_rounds=5)))
    assert (turn.status, turn.stop_reason, len(turn.rounds)) == ("complete", "end_turn", 6)
    assert {id: result.text for id, result in results_of(turn).items()} == {
        f"{number}{letter}": f"met {number}{letter}" for number in range(1, 6) for letter in "abc"
    }
    assert [request.may_use_tools for request in provider.requests] == [True] * 5 + [False]
    for number, request in enumerate(provider.requests):
        answered = [[block.tool_use_id for block in message.blocks] for message in request.messages[2::2]]
        assert answered == [[f"{n}{letter}" for letter in "abc"] for n in range(1, number + 1)], (
            "in the order of the calls"
        )


async def test_a_connection_for_the_next_round_is_kept_open_while_tools_run(harness: Harness) -> None:
    kept: list[str] = []

    class Keeping(ScriptedProvider):
        @asynccontextmanager
        async def kept_open(self) -> AsyncIterator[None]:
            kept.append("open")
            yield
            kept.append("free")

    @tool()
    async def act() -> str:
        """Do something."""
        kept.append("act")
        return "done"

    async with harness.replica(Keeping([calls("act"), answer()]), [act]) as replica:
        await harness.finish(replica, await harness.ask(tools=[act]))
    assert kept == ["open", "act", "free"]


async def test_results_go_back_in_the_order_of_the_calls_however_they_came(harness: Harness) -> None:
    second_is_done = asyncio.Event()

    @tool()
    async def wait() -> str:
        """Wait for the other."""
        await second_is_done.wait()
        return "first"

    @tool()
    async def hurry() -> str:
        """Do not wait."""
        second_is_done.set()
        return "second"

    provider = ScriptedProvider([calls("wait", "hurry"), answer()])
    async with harness.replica(provider, [wait, hurry]) as replica:
        await harness.finish(replica, await harness.ask(tools=[wait, hurry]))
    assert [block.text for block in provider.requests[1].messages[-1].blocks] == ["first", "second"]


async def test_tools_that_fail_in_every_way_are_results_and_the_model_answers(harness: Harness) -> None:
    tools = [look, refuse, explode, hang, flood]
    bad = message_of(
        tool_use("look", {"whom": 1}, "bad input"),
        [*tool_use("look", {}, "no json")[:1], *_pieces("{nonsense"), tool_use("look", {}, "no json")[-1]],
        *(tool_use(name, {}, name) for name in ("refuse", "explode", "hang", "flood", "sing")),
    )
    async with harness.replica(ScriptedProvider([bad, answer()]), tools) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=tools))
    results = results_of(turn)
    assert (turn.status, turn.stop_reason) == ("complete", "end_turn")
    assert [id for id, result in results.items() if not result.is_error] == ["flood"]
    assert "There is no `whom`" in results["bad input"].text
    assert "is not valid JSON" in results["no json"].text
    assert results["refuse"].text == "There is no tide today."
    assert results["explode"].text == "The tool explode failed (ValueError)."
    assert "did not finish within 0.01 s" in results["hang"].text
    assert results["flood"].text.endswith("[The result was cut here: 999,000 of its 1,000,000 characters are missing.]")
    assert results["sing"].text.startswith("There is no tool 'sing'")


def _pieces(*pieces: str) -> Sequence[Part]:
    return text(*pieces)[1:-1]


async def test_a_tool_that_was_not_offered_is_not_run(harness: Harness) -> None:
    async with harness.replica(ScriptedProvider([calls("explode"), answer()]), [look, explode]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert results_of(turn)["0"].text == "There is no tool 'explode'; the tools are: look."


async def test_read_only_tools_start_when_their_block_closes_and_others_wait_for_the_seal(harness: Harness) -> None:
    looking, writing, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool()
    async def write() -> str:
        """Have an effect."""
        writing.set()
        return "written"

    @tool(read_only=True)
    async def read() -> str:
        """Have none."""
        looking.set()
        await go_on.wait()
        return "read"

    pause = Pause()
    whole = list(calls("write", "read"))
    provider = ScriptedProvider([[*whole[:-1], pause, whole[-1]], answer()])
    async with harness.replica(provider, [write, read]) as replica:
        asked = await harness.ask(tools=[write, read])
        replica.worker.wake()
        await asyncio.gather(pause.reached.wait(), looking.wait())
        assert not writing.is_set(), "the model still talks"
        assert not results_of(replica.view(asked).turn)
        pause.go.set()
        await writing.wait()
        go_on.set()
        turn = await harness.finish(replica, asked)
    assert [block.text for block in turn.blocks if block.type == "tool_result"] == ["written", "read"]


async def test_a_tool_gets_its_context_and_may_show_progress(harness: Harness) -> None:
    contexts: list[ToolContext] = []

    @tool()
    async def work(context: ToolContext) -> str:
        """Show progress."""
        context.progress("halfway")
        contexts.append(context)
        return "done"

    async with harness.replica(ScriptedProvider([calls("work"), answer()]), [work]) as replica:
        asked = await harness.ask(tools=[work])
        await harness.finish(replica, asked)
    (context,) = contexts
    assert (context.owner, context.chat_id, context.turn_id) == ("ada", asked.chat, asked.turn)
    assert context.idempotency_key == f"{asked.turn}:1:0"


# --- limits ----------------------------------------------------------------------------------------------------------


def always_calling(request: ModelRequest) -> Reply:
    return message_of(tool_use("look", {}, f"call {len(request.messages)}"))


def calling_when_allowed(request: ModelRequest) -> Reply:
    return always_calling(request) if request.may_use_tools else answer()


@pytest.mark.parametrize("max_rounds", [0, 1, 5])
async def test_after_the_last_tool_round_the_model_must_answer(harness: Harness, max_rounds: int) -> None:
    provider = ScriptedProvider(calling_when_allowed)
    async with harness.replica(provider, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look], limits=Limits(max_rounds)))
    assert (turn.status, turn.stop_reason) == ("complete", "end_turn")
    assert texts_of(turn) == ["There."]
    assert [request.may_use_tools for request in provider.requests] == [True] * max_rounds + [False]
    assert all(request.tools == (look.spec,) for request in provider.requests), "the tools stay listed"


@pytest.mark.parametrize("policy", ["answer", "stop"])
@pytest.mark.parametrize("max_rounds", [0, 1, 5])
async def test_a_model_that_calls_tools_for_ever_is_stopped(
    harness: Harness, max_rounds: int, policy: RoundLimitPolicy
) -> None:
    provider = ScriptedProvider(always_calling)
    async with harness.replica(provider, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look], limits=Limits(max_rounds, policy)))
    assert (turn.status, turn.stop_reason) == ("complete", "max_tool_rounds")
    ran = [result for result in results_of(turn).values() if not result.is_error]
    assert len(ran) == max_rounds
    assert len(provider.requests) == max_rounds + (policy == "answer" or max_rounds == 0)


async def test_a_tool_that_always_asks_for_another_ends_in_an_answer(harness: Harness) -> None:
    @tool()
    async def again(number: int) -> Outcome:
        """Never be content."""
        return Outcome(f"Call again with {number + 1}, it is urgent.")

    def obedient(request: ModelRequest) -> Reply:
        number = len(request.messages)
        return message_of(tool_use("again", {"number": number}, str(number))) if request.may_use_tools else answer()

    async with harness.replica(ScriptedProvider(obedient), [again]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[again], limits=Limits(max_rounds=3)))
    assert (turn.stop_reason, len(results_of(turn)), texts_of(turn)) == ("end_turn", 3, ["There."])


async def test_rounds_of_nothing_but_failures_are_counted(harness: Harness) -> None:
    def stubborn(request: ModelRequest) -> Reply:
        return calls("explode") if request.may_use_tools else answer()

    provider = ScriptedProvider(stubborn)
    async with harness.replica(provider, [explode]) as replica:
        limits = Limits(max_rounds=9, max_failed_rounds=2)
        turn = await harness.finish(replica, await harness.ask(tools=[explode], limits=limits))
    assert (turn.stop_reason, texts_of(turn)[-1]) == ("end_turn", "There.")
    assert [request.may_use_tools for request in provider.requests] == [True, True, False]


async def test_a_turn_that_does_not_continue_ends_as_tool_use_with_its_results_stored(harness: Harness) -> None:
    provider = ScriptedProvider([calls("look", "explode")])
    async with harness.replica(provider, [look, explode]) as replica:
        asked = await harness.ask(tools=[look, explode], limits=Limits(continue_after_tools=False))
        turn = await harness.finish(replica, asked)
    assert (turn.status, turn.stop_reason, len(provider.requests)) == ("complete", "tool_use", 1)
    assert {id: result.is_error for id, result in results_of(turn).items()} == {"0": False, "1": True}


# --- what a model may stop for ---------------------------------------------------------------------------------------


async def test_a_refusal_is_the_end_and_its_calls_are_not_run(harness: Harness) -> None:
    refused = message_of(text("I will"), tool_use("explode", {}, "a"), stop_reason="refusal")
    async with harness.replica(ScriptedProvider([refused]), [explode]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[explode]))
    assert (turn.status, turn.stop_reason) == ("complete", "refusal")
    assert results_of(turn)["a"].text == "This call was not run: the reply was refused."


async def test_a_paused_reply_continues_from_its_text(harness: Harness) -> None:
    provider = ScriptedProvider([message_of(text("Searching."), stop_reason="pause_turn"), answer()])
    async with harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.stop_reason, texts_of(turn)) == ("end_turn", ["Searching.", "There."])
    last = provider.requests[1].messages[-1]
    assert (last.role, [block.text for block in last.blocks]) == ("assistant", ["Searching."]), "nothing is added"


@pytest.mark.parametrize("whole", [[], [tool_use("look", {}, "whole")]])
async def test_a_call_that_was_cut_by_max_tokens_is_not_run_and_whole_ones_are(
    harness: Harness, whole: list[list[Part]]
) -> None:
    *whole_parts, _, _, _ = message_of(*whole, tool_use("look", {"what": "a ship"}, "cut"))
    provider = ScriptedProvider([[*whole_parts, ending("max_tokens")], answer()])
    async with harness.replica(provider, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert set(results_of(turn)) == ({"whole"} if whole else set())
    assert [block.tool_use_id for block in turn.blocks if block.interrupted] == ["cut"]
    assert turn.stop_reason == ("end_turn" if whole else "max_tokens")


async def test_usage_is_summed_over_the_rounds(harness: Harness) -> None:
    first = message_of(tool_use("look", {}, "a"), usage={"output_tokens": 7, "cache_creation": {"five": 1}})
    second = message_of(text("There."), usage={"output_tokens": 5, "cache_creation": {"five": 2}, "speed": "fast"})
    async with harness.replica(ScriptedProvider([first, second]), [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert turn.usage == {"input_tokens": 20, "output_tokens": 12, "cache_creation": {"five": 3}, "speed": "fast"}
    assert [round.usage["output_tokens"] for round in turn.rounds] == [7, 5]


# --- what a model is asked -------------------------------------------------------------------------------------------


async def test_a_conversation_is_sent_from_its_start(harness: Harness) -> None:
    provider = ScriptedProvider([answer("One."), answer("Two.")])
    async with harness.replica(provider) as replica:
        first = await harness.ask("first", system="Be brief.")
        await harness.finish(replica, first)
        await harness.finish(replica, await harness.ask("second", after=first, system="Be brief."))
    sent = [(message.role, message.blocks[0].text) for message in provider.requests[1].messages]
    assert sent == [("user", "first"), ("assistant", "One."), ("user", "second")]
    assert [request.system for request in provider.requests] == ["Be brief.", "Be brief."]
    before, [past] = [list(request.past) for request in provider.requests]  # the times of the previous calls
    assert before == []
    assert past.started_at is not None


NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("of_the_turn", "of_the_chat", "of_the_answer_before", "of_the_server", "resolved"),
    [
        ("turn", "chat", "before", "server", "turn"),
        (None, "chat", "before", "server", "chat"),
        (None, None, "before", "server", "before"),
        (None, None, None, "server", "server"),
        (None, None, None, None, None),
        ("", "chat", "before", "server", None),
        (None, "", "before", "server", None),
    ],
)
def test_the_system_prompt_is_the_turns_own_or_the_chats_or_that_of_the_past_or_the_servers(
    of_the_turn: str | None,
    of_the_chat: str | None,
    of_the_answer_before: str | None,
    of_the_server: str | None,
    resolved: str | None,
) -> None:
    models = Models([ProviderModels(ScriptedProvider([]), ["scripted"])])
    request = Resolver(models, Toolset([look]), Defaults("scripted", of_the_server, Limits())).resolve(
        TurnOptions(system_prompt=of_the_turn),
        Chat(new_id(), "ada", None, of_the_chat, {}, NOW, NOW),
        TurnRequest("scripted", of_the_answer_before) if of_the_answer_before else None,
    )
    assert request.system == resolved


async def test_many_turns_run_at_once_and_each_gets_its_own_answer(harness: Harness) -> None:
    everyone = asyncio.Barrier(20)

    @tool()
    async def gather() -> str:
        """Wait until everybody is here."""
        await everyone.wait()
        return "here"

    def reply(request: ModelRequest) -> Iterator[Sequence[Part]]:
        if request.may_use_tools:
            return message_of(tool_use("gather", {}, "a"))
        return message_of(text(f"You said {request.messages[0].blocks[0].text}."))

    toolset = Toolset([gather], max_parallel=20)
    async with harness.replica(ScriptedProvider(reply), toolset=toolset) as replica:
        limits = Limits(max_rounds=1)
        asked = [await harness.ask(str(number), tools=[gather], limits=limits) for number in range(20)]
        turns = await asyncio.gather(*(harness.finish(replica, one) for one in asked))
    assert [texts_of(turn) for turn in turns] == [[f"You said {number}."] for number in range(20)]
