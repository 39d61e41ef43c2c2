"""Tool results for which the conversation has no room any more."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from tests.support.harness import OWNER, TICK, Asked, Harness, results_of
from turnstream.domain.blocks import Block
from turnstream.domain.errors import TooLong
from turnstream.domain.kinds import SHORTENED, TEXT, TOOL_RESULT
from turnstream.domain.turns import Limits, TurnRequest
from turnstream.extensions.tool_results.read_result import result_tools
from turnstream.extensions.tool_results.results import ToolResults
from turnstream.llm.conversation.messages import SUMMARISE
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.tools.tool import Tool, tool
from turnstream.tools.toolset import Toolset

WINDOW = 6_000  # the model's context window in tokens
LIMITS = Limits(context_window=WINDOW, max_rounds=20)
PAGE = "It is a long page. " * 250


@tool(read_only=True)
async def look(page: int) -> str:
    """Look at a page."""
    return f"Page {page}. {PAGE}"


@dataclass
class Reader:
    """A model with a small context window. It reads a page in each round, and refuses requests that are too long."""

    rounds: int
    window: int = WINDOW
    at_once: int = 1
    says_how_much: bool = True
    refused: int = 0
    seen: list[Sequence[str]] = field(default_factory=list)
    calls: int = 0

    def __call__(self, request: ModelRequest) -> Reply:
        blocks = [block for message in request.messages for block in message.blocks]
        size = sum(len(block.text) for block in blocks) // 4
        if size > self.window:
            self.refused += 1
            return [TooLong("invalid_request_error", f"prompt is too long: {size} tokens > {self.window} maximum")]
        usage = {"input_tokens": size if self.says_how_much else None, "output_tokens": 20}
        if blocks[-1].text == SUMMARISE:
            return message_of(text("In short."), usage=usage)
        self.seen.append([block.text for block in blocks if block.type == TOOL_RESULT])
        if self.calls % (self.rounds + 1) == self.rounds:
            self.calls += 1
            return message_of(text("Read."), usage=usage)
        self.calls += 1
        more = range(1, self.at_once)
        calls = [tool_use("look", {"page": self.calls}, f"c{self.calls}{'-' * number}") for number in (0, *more)]
        return message_of(*calls, usage=usage)


def toolset_of(harness: Harness, *tools: Tool) -> Toolset:
    return Toolset([look, *tools], max_result_chars=10_000, patience=TICK)


async def test_a_turn_reads_more_than_its_model_can_take_at_once(harness: Harness) -> None:
    model = Reader(rounds=12)
    async with harness.replica(ScriptedProvider(model), toolset=toolset_of(harness)) as replica:
        turn = await harness.finish(replica, await harness.ask("Read", limits=LIMITS, tools=[look]))
    assert (turn.status, model.refused) == ("complete", 0)
    notes = [block for block in turn.blocks if block.type == SHORTENED]
    assert len(notes) >= 2
    assert notes[0].text.startswith("From here on ")
    assert not any(round.stop_reason == "compacted" for round in turn.rounds)
    last = model.seen[-1]
    assert len(last) == 12
    assert last[0].startswith("Page 1. It is a long page.")
    assert "[Left out here: " in last[0]
    assert last[-1] == f"Page 12. {PAGE}", "the newest is as it was"
    assert {len(block.text) for block in results_of(turn).values()} <= {len(PAGE) + 8, len(PAGE) + 9}
    anew = [later for earlier, later in pairwise(model.seen) if later[: len(earlier)] != earlier]
    assert len(anew) == len(notes), "except for the shortened results, a request repeats the one before it"


async def test_a_refusal_as_too_long_shortens_them_and_the_call_is_made_again(harness: Harness) -> None:
    model = Reader(rounds=6)
    unknown = Limits(max_rounds=20)
    async with harness.replica(ScriptedProvider(model), toolset=toolset_of(harness)) as replica:
        turn = await harness.finish(replica, await harness.ask("Read", limits=unknown, tools=[look]))
    assert (turn.status, model.refused) == ("complete", 1)
    assert [block.type for block in turn.blocks].count(SHORTENED) == 1
    assert turn.recoveries == 0


async def test_a_branch_made_before_a_shortening_sees_the_tool_results_and_a_later_one_does_not(
    harness: Harness,
) -> None:
    model = Reader(rounds=3)
    async with harness.replica(ScriptedProvider(model), toolset=toolset_of(harness)) as replica:
        first = await harness.ask("Read", limits=LIMITS, tools=[look])
        await harness.finish(replica, first)
        second = await harness.ask("More", after=first, limits=LIMITS, tools=[look])
        assert any(block.type == SHORTENED for block in (await harness.finish(replica, second)).blocks)
        after = await harness.ask("And?", after=second, limits=LIMITS, tools=[look])
        await harness.finish(replica, after)
        assert "[Left out here: " in model.seen[-1][0]
        request = TurnRequest("scripted", limits=LIMITS, tools=(look.spec,))
        async with Exchanges(harness.database).after(Target(OWNER, first.chat, first.turn), None) as draft:
            exchange = await draft.create([Block(0, 0, 0, TEXT, "Or?")], request, None)
        asked_before = len(model.seen)
        await harness.finish(replica, Asked(first.chat, exchange.assistant_turn.id))
    assert model.seen[asked_before][0] == f"Page 1. {PAGE}"


async def test_shortened_results_can_be_read_again(harness: Harness) -> None:
    model = Reader(rounds=6)
    (read,) = result_tools(ToolResults(harness.database))
    async with harness.replica(ScriptedProvider(model), toolset=toolset_of(harness, read)) as replica:
        asked = await harness.ask("Read", limits=LIMITS, tools=[look, read])
        await harness.finish(replica, asked)
    seen = model.seen[-1][0]
    assert seen.endswith('To read them, call read_result with tool_use_id "c1" and offset 500.]')
    assert await ToolResults(harness.database).whole(asked.turn, "c1") == f"Page 1. {PAGE}"


async def test_a_turn_of_very_many_rounds_leaves_out_the_oldest_results_whole(harness: Harness) -> None:
    model = Reader(rounds=45)
    limits = replace(LIMITS, max_rounds=60)
    async with harness.replica(ScriptedProvider(model), toolset=toolset_of(harness)) as replica:
        turn = await harness.finish(replica, await harness.ask("Read", limits=limits, tools=[look]))
    assert (turn.status, turn.stop_reason, model.refused) == ("complete", "end_turn", 0)
    last = model.seen[-1]
    assert last[0] == (
        "[Left out here: 4,758 of 4,758 characters, since the conversation has become long."
        " If you need them, call look again.]"
    )
    assert last[-1] == f"Page 45. {PAGE}"
    notes = [block for block in turn.blocks if block.type == SHORTENED]
    anew = [later for earlier, later in pairwise(model.seen) if later[: len(earlier)] != earlier]
    assert len(anew) <= len(notes) < 45, "the provider's cache is not given up with every request"


@pytest.mark.parametrize("calls", [2, 3])
async def test_results_that_no_request_has_room_for_are_shortened_before_the_model_sees_them(
    harness: Harness, calls: int
) -> None:
    model = Reader(rounds=2, window=WINDOW // 4, at_once=calls)
    limits = replace(LIMITS, context_window=WINDOW // 4)
    async with harness.replica(ScriptedProvider(model), toolset=toolset_of(harness)) as replica:
        turn = await harness.finish(replica, await harness.ask("Read", limits=limits, tools=[look]))
    assert (turn.status, turn.stop_reason) == ("complete", "end_turn")
    assert 1 <= model.refused <= 3
    assert all("[Left out here: " in seen for seen in model.seen[-1])
