"""Conversations that are longer than their model's context window."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from tests.support.harness import OWNER, Asked, Harness, Replica, texts_of
from turnstream.domain.blocks import Block
from turnstream.domain.errors import TooLong
from turnstream.domain.history import COMPACTED
from turnstream.domain.kinds import SUMMARY, TEXT, TOOL_RESULT
from turnstream.domain.steps import VOIDED
from turnstream.domain.turns import Limits, TurnRequest
from turnstream.llm.conversation.messages import SUMMARISE, SUMMARISED
from turnstream.llm.provider import Message, MessageDelta, MessageEnded, ModelRequest
from turnstream.scripted import Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.tools.tool import tool

WINDOW = 3_000  # the model's context window in tokens
LIMITS = Limits(context_window=WINDOW)
FACT = re.compile(r"fact \d+")
TURNS = 200


def words_of(messages: Iterable[Message]) -> str:
    return "\n".join(block.text for message in messages for block in message.blocks)


@dataclass
class Small:
    """A model with a small context window. It knows only the facts in its request, and refuses a request that is too
    long.
    """

    window: int = WINDOW
    largest: int = 0
    refused: int = 0
    summaries: int = 0
    facts: list[set[str]] = field(default_factory=list)

    def __call__(self, request: ModelRequest) -> Reply:
        words = words_of(request.messages)
        size = len(words) // 4
        if size > self.window:
            self.refused += 1
            return [TooLong("invalid_request_error", f"prompt is too long: {size} tokens > {self.window} maximum")]
        self.largest = max(self.largest, size)
        usage = {"input_tokens": size, "output_tokens": 20}
        if SUMMARISE in words:
            self.summaries += 1
            known = sorted(set(FACT.findall(words)), key=lambda fact: int(fact.split()[1]))
            return message_of(text("Known: ", ", ".join(known[-60:])), usage=usage)
        self.facts.append(set(FACT.findall(words)))
        return message_of(text("I will remember. " + "Hm. " * 20), usage=usage)


async def say(harness: Harness, replica: Replica, words: str, after: Asked | None, limits: Limits = LIMITS) -> Asked:
    asked = await harness.ask(words, after=after, limits=limits)
    replica.worker.wake()
    await harness.follow(replica, asked)
    return asked


@pytest.mark.timeout(240)
async def test_a_chat_of_many_turns_continues_in_a_small_window(harness: Harness) -> None:
    model = Small()
    asked: Asked | None = None
    async with harness.replica(ScriptedProvider(model)) as replica:
        for number in range(TURNS // 2):
            asked = await say(harness, replica, f"This is fact {number}. " + "Well. " * 60, asked)
            turn = await harness.turn(asked)
            assert turn.status == "complete", turn.error
            assert f"fact {number}" in model.facts[-1]
    assert model.refused == 0
    assert model.summaries >= 3
    assert model.largest <= WINDOW
    assert {f"fact {TURNS // 2 - 10}", f"fact {TURNS // 2 - 1}"} <= model.facts[-1]
    assert len(model.facts[-1]) >= 60, "facts of the summary are in later requests"


class Archivist:
    """A model that reads a page and makes a decision in each answer. Its summaries contain exactly the facts in the
    request.
    """

    def __init__(self) -> None:
        self.summaries = 0
        self.known: list[set[str]] = []  # the facts in the request of each answer

    def __call__(self, request: ModelRequest) -> Reply:
        words = words_of(request.messages)
        facts = dict.fromkeys(OF_ANY_KIND.findall(words))
        usage = {"input_tokens": len(words) // 4, "output_tokens": 20}
        if SUMMARISE in words:
            self.summaries += 1
            return message_of(text("Known: ", ", ".join(facts)), usage=usage)
        last = request.messages[-1].blocks[-1]
        number = re.findall(r"(?:told|seen) (\d+)", words)[-1]
        if last.type != TOOL_RESULT:
            return message_of(tool_use("look", {"number": int(number)}, f"call_{number}"), usage=usage)
        self.known.append(set(facts))
        return message_of(text(f"I have decided {number}. ", "Hm. " * 20), usage=usage)


OF_ANY_KIND = re.compile(r"(?:told|seen|decided) \d+")


@tool(name="look", read_only=True)
async def look_at(number: int) -> str:
    """Look."""
    return f"I have seen {number}. " + "A long sight. " * 60


async def test_facts_of_every_kind_survive_each_summary(harness: Harness) -> None:
    """Facts from the user and from tools, and decisions of the model, are in every later request."""
    model = Archivist()
    limits = Limits(context_window=WINDOW, max_rounds=2)
    asked: Asked | None = None
    expected: set[str] = set()
    async with harness.replica(ScriptedProvider(model), [look_at]) as replica:
        for number in range(40):
            asked = await harness.ask(
                f"You are told {number}. " + "Well. " * 20, after=asked, limits=limits, tools=[look_at]
            )
            turn = await harness.finish(replica, asked)
            assert turn.status == "complete", turn.error
            expected |= {f"told {number}", f"seen {number}"}
            assert expected - model.known[-1] == set(), f"after {model.summaries} summaries"
            expected.add(f"decided {number}")
    assert model.summaries >= 3


async def test_the_summary_is_a_block_of_the_turn_and_the_summarised_rows_stay(harness: Harness) -> None:
    model = Small(window=1000)
    asked: Asked | None = None
    limits = Limits(context_window=1000)
    turns: list[Asked] = []
    async with harness.replica(ScriptedProvider(model)) as replica:
        while not model.summaries:
            asked = await say(harness, replica, f"This is fact {len(turns)}. " + "Well. " * 30, asked, limits)
            turns.append(asked)
        turn = await harness.finish(replica, asked) if asked else None
    assert turn is not None
    assert [(round.stop_reason, round.model) for round in turn.rounds] == [
        (COMPACTED, "scripted"),
        ("end_turn", "scripted"),
    ]
    summary, answer = turn.blocks
    assert (summary.type, answer.type) == (SUMMARY, "text")
    assert summary.text.startswith("Known: fact 0")
    assert (await harness.turn(turns[0])).blocks[0].text.startswith("I will remember.")
    assert turn.usage["output_tokens"] == 40


async def test_a_provider_that_says_too_long_leads_to_a_summary_and_another_try(harness: Harness) -> None:
    model = Small(window=500)
    asked: Asked | None = None
    async with harness.replica(ScriptedProvider(model)) as replica:
        for number in range(12):
            asked = await say(harness, replica, f"This is fact {number}. " + "Well. " * 30, asked, Limits())
            assert (await harness.turn(asked)).status == "complete"
    assert model.refused > 0
    assert model.summaries > 0


async def test_a_message_that_is_too_long_ends_the_turn_with_the_error_of_the_provider(harness: Harness) -> None:
    async with harness.replica(ScriptedProvider(Small(window=50))) as replica:
        turn = await harness.finish(replica, await harness.ask("Well. " * 100))
    assert turn.error is not None
    assert "prompt is too long" in turn.error.message


async def test_a_summary_without_words_is_asked_for_again(harness: Harness) -> None:
    long = {"input_tokens": 400, "output_tokens": 5}
    replies = [
        message_of(text("First. " * 100), usage=long),
        [*list(message_of(text(" ")))[:-1], (MessageDelta("end_turn", {}),), (MessageEnded(),)],
        message_of(text("Short.")),
        message_of(text("Second.")),
    ]
    provider = ScriptedProvider(replies)
    limits = Limits(context_window=300)
    async with harness.replica(provider) as replica:
        first = await say(harness, replica, "One", None, limits)
        second = await say(harness, replica, "Two", first, limits)
    turn = await harness.turn(second)
    assert (turn.status, texts_of(turn)) == ("complete", ["Second."])
    assert words_of(provider.requests[-1].messages) == f"{SUMMARISED}Short.\nTwo"


async def test_a_reply_that_turns_out_too_long_when_it_has_begun_is_taken_back(harness: Harness) -> None:
    begun = list(message_of(text("Half of")))[:3]
    provider = ScriptedProvider(
        [
            message_of(text("First. " * 100)),
            [*begun, TooLong("context_length_exceeded", "too long")],
            message_of(text("Short.")),
            message_of(text("Second.")),
        ]
    )
    async with harness.replica(provider) as replica:
        first = await say(harness, replica, "One", None, Limits())
        asked = await harness.ask("Two", after=first)
        replica.worker.wake()
        turn = await harness.finish(replica, asked)
    assert [(round.stop_reason, round.voided) for round in turn.rounds] == [
        (VOIDED, True),
        (COMPACTED, False),
        ("end_turn", False),
    ]
    assert [block.text for block in turn.blocks] == ["Short.", "Second."]


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "a long sight " * 500


async def test_a_summary_is_made_between_the_rounds_of_a_turn(harness: Harness) -> None:
    replies = [
        message_of(text("First. " * 100)),
        message_of(tool_use("look", {}, "a")),
        message_of(text("They said first.")),
        message_of(text("Seen.")),
    ]
    limits = Limits(context_window=300)
    provider = ScriptedProvider(replies)
    async with harness.replica(provider, [look]) as replica:
        first = await say(harness, replica, "One", None, limits)
        asked = await harness.ask("Two", after=first, limits=limits, tools=[look])
        replica.worker.wake()
        await harness.follow(replica, asked)
    turn = await harness.turn(asked)
    assert [round.stop_reason for round in turn.rounds] == ["tool_use", COMPACTED, "end_turn"]
    last = provider.requests[-1].messages
    assert words_of(last).startswith(f"{SUMMARISED}They said first.\nTwo")
    assert [message.role for message in last] == ["user", "assistant", "user"]


async def test_branches_made_before_see_their_own_history(harness: Harness) -> None:
    model = Small(window=1000)
    limits = Limits(context_window=1000)
    async with harness.replica(ScriptedProvider(model)) as replica:
        first = await say(harness, replica, "This is fact 1.", None, limits)
        asked = first
        while not model.summaries:
            asked = await say(harness, replica, "Well. " * 40, asked, limits)
        async with Exchanges(harness.database).after(Target(OWNER, first.chat, first.turn), None) as draft:
            exchange = await draft.create([Block(0, 0, 0, TEXT, "And?")], TurnRequest("scripted", limits=limits), None)
        branch = Asked(first.chat, exchange.assistant_turn.id)
        replica.worker.wake()
        await harness.follow(replica, branch)
    assert model.facts[-1] == {"fact 1"}
    assert model.summaries == 1
