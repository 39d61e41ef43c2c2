"""Guards over real turns: what readers and rows contain after each ruling of a guard, and after a kill."""

import asyncio
import itertools
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from structlog.testing import capture_logs

from tests.support.harness import POLICY, Asked, Harness, Replica, results_of, texts_of
from tests.support.stream_client import Client
from turnstream.domain.errors import GuardFailed, MessageBlocked, TransientError
from turnstream.domain.guards import Place
from turnstream.domain.kinds import THINKING
from turnstream.domain.plans import Plan, Plans
from turnstream.domain.turns import Turn
from turnstream.libraries.guards.checks import InputGuards
from turnstream.libraries.guards.guard import (
    EndTurn,
    Guard,
    Mask,
    Pass,
    Passage,
    Replace,
    Ruling,
    TakeBack,
    TextSpan,
)
from turnstream.llm.provider import Part
from turnstream.scripted import Pause, ScriptedProvider, Step, message_of, text, thinking, tool_use
from turnstream.storage.database import Statement
from turnstream.tools.tool import ToolContext, ToolResult, tool

SECRET = re.compile(r"sk-[a-z0-9]+")
STORED = Statement(
    "SELECT text FROM blocks UNION ALL SELECT text FROM open_text UNION ALL SELECT pieces FROM journal_ticks"
    " UNION ALL SELECT content FROM tool_cache"
)
Check = Callable[[Passage], Awaitable[Ruling]]


async def mask_keys(passage: Passage) -> Ruling:
    return Mask([TextSpan(*found.span()) for found in SECRET.finditer(passage.text)])


def ruling(word: str, then: Ruling) -> Check:
    """Returns a check that gives this ruling if the text contains the word."""

    async def check(passage: Passage) -> Ruling:
        return then if word in passage.text else Pass(undecided=0)

    return check


async def broken(_: Passage) -> Ruling:
    raise LookupError("secret words of a failure")


async def hanging(_: Passage) -> Ruling:
    await asyncio.Event().wait()
    raise AssertionError


def guard(check: Check, *on: Place, window: int | None = None, overlap: int = 20, name: str = "keys") -> Guard:
    return Guard(name, check, frozenset(on or ("text",)), window, overlap)


async def answered(harness: Harness, *guards: Guard, pieces: Sequence[str]) -> Turn:
    async with harness.replica(ScriptedProvider([message_of(text(*pieces))]), guards=guards) as replica:
        return await harness.finish(replica, await harness.ask())


async def stored(harness: Harness) -> str:
    """Returns all texts in the database."""
    return "\n".join(row["text"] or "" for row in await harness.database.rows(STORED))


def paused(pause: Pause, after: int, *blocks: list[Part]) -> list[Step]:
    """Returns a message that pauses after so many parts."""
    steps: list[Step] = list(message_of(*blocks))
    return [*steps[:after], pause, *steps[after:]]


async def reads(harness: Harness, replica: Replica, asked: Asked, word: str) -> Client:
    """Returns a client that has read up to this word and then disconnected."""
    client = Client()
    reading = asyncio.create_task(harness.follow(replica, asked, client))
    while word not in "".join(piece.text for piece in client.blocks):  # noqa: ASYNC110, the client has no event
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading})
    return client


@pytest.mark.parametrize("window", [None, 0, 7])
async def test_a_key_is_masked_wherever_it_is_cut(harness: Harness, window: int | None) -> None:
    pieces = ["The key is s", "k", "-ab", "12", " and", " no", " more", " than", " that", "."]
    turn = await answered(harness, guard(mask_keys, window=window), pieces=pieces)
    assert texts_of(turn) == ["The key is [masked] and no more than that."]
    assert turn.status == "complete"


async def test_text_held_by_a_guard_is_neither_shown_nor_stored(harness: Harness) -> None:
    pause = Pause()
    provider = ScriptedProvider([paused(pause, 4, text("sk-abc", " is", " held"))])
    async with harness.replica(provider, guards=[guard(mask_keys)]) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        await replica.store_open()
        assert replica.view(asked).open_length == 0
        assert "sk-" not in await stored(harness)
        pause.go.set()
        turn = await harness.finish(replica, asked)
    assert texts_of(turn) == ["[masked] is held"]


async def test_a_replacement_takes_the_place_of_a_window(harness: Harness) -> None:
    check = ruling("bad", Replace("…"))
    turn = await answered(harness, guard(check, window=1, overlap=0), pieces=["good ", "bad ", "good"])
    assert texts_of(turn) == ["good …good"]


async def test_a_guard_ends_the_turn_and_passed_text_stays(harness: Harness) -> None:
    check = ruling("bad", EndTurn("No bad words."))
    turn = await answered(harness, guard(check, window=1), pieces=["good ", "bad ", "x"])
    assert texts_of(turn) == ["good "]
    assert turn.error is not None
    assert (turn.status, turn.stop_reason, turn.error.type) == ("error", "guardrail", "guardrail")
    assert turn.error.message == "No bad words."
    assert turn.error.details == {"guardrail": "keys", "place": "text"}


async def test_an_end_by_a_guard_may_void_shown_text(harness: Harness) -> None:
    check = ruling("bad", EndTurn("No.", take_back=True))
    turn = await answered(harness, guard(check, window=1), pieces=["good ", "bad ", "x"])
    assert "".join(texts_of(turn)) == ""
    assert turn.stop_reason == "guardrail"
    assert "good" not in await stored(harness)


async def test_a_retraction_replaces_the_text_of_readers_and_rows(harness: Harness) -> None:
    pause = Pause()
    blocks = thinking("Well."), text("My name ", "is Bob", " and I know", " the secret."), text("Bye.")
    provider = ScriptedProvider([paused(pause, 8, *blocks)])
    async with harness.replica(provider, guards=[guard(ruling("secret", TakeBack("(gone)")), window=1)]) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        await replica.store_open()
        assert "Bob" in await stored(harness)
        behind = await reads(harness, replica, asked, "Bob")
        live = behind.copy()
        reading = asyncio.create_task(harness.follow(replica, asked, live))
        pause.go.set()
        turn = await harness.finish(replica, asked)
        await reading
        live.assert_holds(turn)
        assert live.resets == [0]
    assert [block.text for block in turn.blocks] == ["Well.", "(gone)", "Bye."]
    assert turn.status == "complete"
    assert [round.voided for round in turn.rounds] == [True, False]
    assert turn.usage == {"input_tokens": 10, "output_tokens": 5}
    async with harness.replica(ScriptedProvider([])) as other:
        for client in (behind, Client()):  # an old cursor leads to the new text
            (await harness.follow(other, asked, client)).assert_holds(turn)
    assert "Bob" not in await stored(harness)


async def test_a_reader_at_another_replica_gets_the_text_that_has_replaced_the_other_one(harness: Harness) -> None:
    pause = Pause()
    provider = ScriptedProvider([paused(pause, 4, text("My name ", "is Bob", " and I know", " the secret."))])
    guards = [guard(ruling("secret", TakeBack("(gone)")), window=1)]
    async with harness.replica(provider, guards=guards) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        await replica.store_open()
        async with harness.replica(ScriptedProvider([])) as other:
            live = await reads(harness, other, asked, "Bob")
            reading = asyncio.create_task(harness.follow(other, asked, live))
            pause.go.set()
            turn = await harness.finish(replica, asked)
            await reading
            live.assert_holds(turn)
            assert live.resets == [0]
    assert texts_of(turn) == ["(gone)"]


async def test_a_kill_between_release_and_retraction_leaves_nothing_of_the_block(harness: Harness) -> None:
    pause = Pause()
    guards = [guard(ruling("secret", TakeBack("(gone)")), window=1)]
    pieces = text("My name ", "is Bob", " and I know", " the secret.")
    asked = await harness.ask()
    first = ScriptedProvider([paused(pause, 4, pieces)])
    async with harness.replica(first, address="a", guards=guards) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        await replica.store_open()
        behind = await reads(harness, replica, asked, "Bob")
        await replica.kill()
    async with harness.replica(ScriptedProvider([message_of(pieces)]), address="a", guards=guards) as other:
        turn = await harness.finish(other, asked)
        (await harness.follow(other, asked, behind)).assert_holds(turn)
    assert texts_of(turn) == ["(gone)"]
    assert "Bob" not in await stored(harness)


async def test_a_reply_is_continued_if_the_guard_needs_no_more_than_the_overlap(harness: Harness) -> None:
    guards = [replace(guard(mask_keys, window=0), continues=True)]
    replies: list[list[Step]] = [
        [*list(message_of(text("The key that was asked for is ", "sk-a")))[:-2], TransientError("overloaded", "Busy.")],
        [*message_of(text("sk-ab, ", "no more."))],
    ]
    async with harness.replica(ScriptedProvider(replies), guards=guards) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert "".join(texts_of(turn)) == "The key that w[masked], no more."
    assert turn.rounds[0].stop_reason == "interrupted"


async def test_each_guard_gets_the_passed_text_of_the_one_before(harness: Harness) -> None:
    seen: list[str] = []

    async def note(passage: Passage) -> Ruling:
        seen.append(passage.text)
        return Pass(undecided=0)

    await answered(harness, guard(mask_keys, window=0), guard(note, window=0, name="b"), pieces=["a sk-12 ", "b" * 40])
    assert seen == ["a [masked] " + "b" * 20, "b" * 40]


async def test_thinking_that_was_changed_is_not_sent_to_the_provider_again(harness: Harness) -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    replies = [message_of(thinking("The key: ", "sk-12"), tool_use("look", {}, "t1")), message_of(text("Done."))]
    provider = ScriptedProvider(replies)
    guards = [guard(mask_keys, "thinking")]
    async with harness.replica(provider, [look], guards=guards) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert turn.blocks[0].text == "The key: [masked]"
    sent = [block.type for message in provider.requests[1].messages for block in message.blocks]
    assert THINKING not in sent


async def test_the_model_gets_results_of_tools_as_the_guard_lets_them_pass(harness: Harness) -> None:
    @tool(read_only=True)
    async def look(context: ToolContext) -> ToolResult:
        """Look."""
        context.progress("sk-1 on its way")
        context.preliminary("sk-2 so far")
        return ToolResult("The key is sk-3.", data={"key": "sk-4"})

    provider = ScriptedProvider([message_of(tool_use("look", {}, "t1")), message_of(text("Done."))])
    async with harness.replica(provider, [look], guards=[guard(mask_keys, "tool_result")]) as replica:
        asked = await harness.ask(tools=[look])
        client = Client()
        reading = asyncio.create_task(harness.follow(replica, asked, client))
        turn = await harness.finish(replica, asked)
        await reading
    result = results_of(turn)["t1"]
    assert (result.text, result.client_data) == ("The key is [masked].", None)
    assert result.notes is not None
    assert '"guards":["keys"]' in result.notes
    assert "sk-" not in str(provider.requests[1].messages)
    assert "sk-" not in str(client.notices)
    assert "sk-" not in await stored(harness)


async def test_a_kept_result_is_checked_by_a_guard_that_is_newer(harness: Harness) -> None:
    @tool(read_only=True, cache_seconds=60)
    async def look() -> str:
        """Look."""
        return "The key is sk-3."

    def provider() -> ScriptedProvider:
        return ScriptedProvider([message_of(tool_use("look", {}, "t1")), message_of(text("Done."))])

    async with harness.replica(provider(), [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
        assert results_of(turn)["t1"].text == "The key is sk-3."
    async with harness.replica(provider(), [look], guards=[guard(mask_keys, "tool_result")]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    result = results_of(turn)["t1"]
    assert result.text == "The key is [masked]."
    assert result.notes is not None
    assert '"cached"' in result.notes


async def test_a_guard_ends_the_turn_at_a_result(harness: Harness) -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "bad"

    provider = ScriptedProvider([message_of(text("Wait."), tool_use("look", {}, "t1"))])
    guards = [guard(ruling("bad", EndTurn("No.")), "tool_result")]
    async with harness.replica(provider, [look], guards=guards) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert (turn.stop_reason, texts_of(turn)) == ("guardrail", ["Wait."])
    assert results_of(turn)["t1"].is_error


@pytest.mark.parametrize("check", [broken, hanging])
async def test_a_closed_guard_whose_check_fails_ends_the_turn_with_its_reason(harness: Harness, check: Check) -> None:
    failing = replace(guard(check), timeout=0.01)
    with capture_logs() as logs:
        turn = await answered(harness, failing, pieces=["words"])
    assert turn.error is not None
    assert (turn.error.type, "".join(texts_of(turn))) == ("guardrail_failed", "")
    assert "could not check" in turn.error.message
    line = next(line for line in logs if line["event"] == "guard.failed")
    assert (line["guard"], line["policy"]) == ("keys", "closed")
    assert "secret words" not in str(line)


async def test_an_open_guard_whose_check_fails_lets_the_text_pass(harness: Harness) -> None:
    turn = await answered(harness, replace(guard(broken), on_failure="open"), pieces=["words"])
    assert (turn.status, texts_of(turn)) == ("complete", ["words"])


async def test_a_result_that_could_not_be_checked_is_withheld(harness: Harness) -> None:
    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "words"

    provider = ScriptedProvider([message_of(tool_use("look", {}, "t1")), message_of(text("Done."))])
    async with harness.replica(provider, [look], guards=[guard(broken, "tool_result")]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert results_of(turn)["t1"].text.startswith("The result of this call was withheld")
    assert turn.status == "complete"


async def test_a_guard_of_a_plan_checks_the_texts_of_its_owners_only(harness: Harness) -> None:
    of_free = replace(guard(mask_keys), plans=frozenset({"free"}))
    plans = Plans(named={"free": Plan("free")})
    provider = ScriptedProvider([message_of(text("sk-12")) for _ in range(2)])
    async with harness.replica(provider, guards=[of_free], policy=replace(POLICY, plans=plans)) as replica:
        paying = await harness.finish(replica, await harness.ask())
        free = await harness.finish(replica, await harness.ask(plan="free"))
    assert (texts_of(paying), texts_of(free)) == (["sk-12"], ["[masked]"])


async def test_messages_are_checked_before_they_are_stored() -> None:
    guards = [guard(mask_keys, "input"), guard(ruling("bad", EndTurn("No.")), "input", name="words")]
    inputs = InputGuards(guards, Plans())
    assert await inputs.check("ada", None, "use sk-12", "input") == "use [masked]"
    with pytest.raises(MessageBlocked, match=r"No\."):
        await inputs.check("ada", None, "bad", "input")
    with pytest.raises(GuardFailed, match="could not check"):
        await InputGuards([guard(broken, "input")], Plans()).check("ada", None, "words", "input")
    empty = InputGuards([guard(ruling("bad", Replace("")), "input")], Plans())
    assert await empty.check("ada", None, "bad", "input") == "[masked]"
    assert await empty.check("ada", None, "bad", "tool_result") == "bad"


# --- random schedules ------------------------------------------------------------------------------------------------

SCHEDULES = int(os.environ.get("GUARD_SCHEDULES", "20"))
WORDS = ("tide ", "noon. ", "sk", "- ", "of ", "sk-zq7zq ", "(sk-zqzq)", "harbour, ", "\n", "xanadu ", "sk-zq1zq2zq. ")


@dataclass
class Suspicious(Client):
    """A client that checks each frame for a character that must not become readable."""

    def take(self, frames: bytes) -> None:
        assert b"zq" not in frames
        super().take(frames)


def random_guards(random: Random) -> list[Guard]:
    """Returns a guard against keys, and usually a second guard that takes text back or replaces it. Both guards are
    sometimes slow.
    """

    def slow(check: Check) -> Check:
        async def check_later(passage: Passage) -> Ruling:
            for _ in range(random.choice((0, 0, 1, 5))):
                await asyncio.sleep(0)
            return await check(passage)

        return check_later

    keys = guard(slow(mask_keys), window=random.choice((None, 0, 1, 7, 30)))
    then = random.choice((TakeBack("(gone)"), TakeBack(""), Replace("…"), EndTurn("No.", take_back=True)))
    word = guard(slow(ruling("xanadu", then)), window=random.choice((None, 1, 10)), overlap=10, name="word")
    # A guard that replaces text comes second: if part of a key were replaced, the guard of keys would not recognise the
    # rest.
    return random.choice(([keys], [keys, word], [keys, word] if isinstance(then, Replace) else [word, keys]))


@pytest.mark.timeout(30 + 5 * SCHEDULES)
async def test_no_schedule_of_cuts_kills_and_slow_checks_makes_a_forbidden_character_readable(harness: Harness) -> None:
    for seed in range(SCHEDULES):
        random = Random(seed)
        whole = "".join(random.choices(WORDS, k=random.randint(1, 30)))
        cuts = sorted(random.choices(range(len(whole) + 1), k=random.randint(0, 20)))
        pieces = [whole[start:end] for start, end in itertools.pairwise([0, *cuts, len(whole)]) if start < end]
        guards, asked, client = random_guards(random), await harness.ask(), Suspicious()
        for _ in range(random.choice((0, 1, 1, 2))):  # the number of processes that die
            pause = Pause()
            steps = paused(pause, random.randint(2, 1 + len(pieces)), text(*pieces))
            async with harness.replica(ScriptedProvider([steps]), address="a", guards=guards) as replica:
                replica.worker.wake()
                reading = asyncio.create_task(harness.follow(replica, asked, client))
                reached = asyncio.create_task(pause.reached.wait())
                await asyncio.wait({reading, reached}, return_when=asyncio.FIRST_COMPLETED)  # a guard may end the turn
                reached.cancel()
                await replica.store_open()
                reading.cancel()
                await asyncio.wait({reading})
                assert reading.cancelled() or reading.exception() is None, f"seed {seed}"
                await replica.kill()
            assert "zq" not in await stored(harness), f"seed {seed}"
        replies = [message_of(text(*pieces)) for _ in range(3)]
        async with harness.replica(ScriptedProvider(replies), address="a", guards=guards) as replica:
            turn = await harness.finish(replica, asked)
            (await harness.follow(replica, asked, client)).assert_holds(turn)
        assert "zq" not in await stored(harness), f"seed {seed}"
        if len(guards) == 1:
            assert "".join(texts_of(turn)) == SECRET.sub("[masked]", whole), f"seed {seed}"
        assert "xanadu" not in "".join(texts_of(turn)) or len(guards) == 1, f"seed {seed}"
