"""The loop when the provider fails: before the first text, in mid-sentence, after a call, or permanently."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.support.harness import POLICY, QUICK, Harness, Replica, results_of, texts_of, with_model
from tests.support.stream_client import Client
from turnstream.domain.degraded import Degraded, degraded
from turnstream.domain.errors import PermanentError, TransientError
from turnstream.domain.events import Notice
from turnstream.domain.turns import Limits, RecoveryPolicy
from turnstream.engine.retries import Retries, RetryPolicy
from turnstream.llm.conversation.messages import GO_ON
from turnstream.llm.provider import BlockOpened, BlockText, MessageEnded, ModelRequest, Part
from turnstream.scripted import (
    Pause,
    Reply,
    ScriptedProvider,
    Step,
    message_blocks,
    message_of,
    text,
    thinking,
    tool_use,
)
from turnstream.tools.tool import tool

ANSWER = "There."
CONTINUE, RETRY = Limits(), Limits(recovery="retry")


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


def overloaded(**more: Any) -> TransientError:
    return TransientError("overloaded_error", "Overloaded", request_id="req_1", **more)


def answer() -> Reply:
    return message_of(text(ANSWER))


def broken(*blocks: Sequence[Part], by: Step | None = None, drop: int = 1) -> list[Step]:
    """Returns a message that breaks off before its last `drop` parts."""
    whole = list(message_of(*blocks))
    return [*whole[: -1 - drop], overloaded() if by is None else by]


def always(*blocks: Sequence[Part]) -> ScriptedProvider:
    return ScriptedProvider(lambda _: broken(*blocks))


def notices(client: Client) -> list[Any]:
    return [notice.data for notice in client.notices if isinstance(notice, Notice) and notice.name == "retry"]


# --- before the first word -------------------------------------------------------------------------------------------


async def test_a_provider_that_is_overloaded_is_asked_again(harness: Harness) -> None:
    provider = ScriptedProvider([[overloaded()], [overloaded()], answer()])
    async with harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.status, turn.attempt, texts_of(turn)) == ("complete", 1, [ANSWER])
    assert len(provider.requests) == 3
    assert provider.requests[0] == provider.requests[2], "it is the same request"


async def test_readers_get_a_notice_of_the_retry(harness: Harness) -> None:
    pause = Pause()
    async with harness.replica(ScriptedProvider([[pause, overloaded()], answer()])) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        watching = asyncio.create_task(harness.follow(replica, asked))
        await _attached(replica, asked.turn)
        pause.go.set()
        (notice,) = notices(await watching)
    seconds = notice.pop("seconds")
    assert seconds >= 0
    assert notice == {"error": "overloaded_error", "message": "Overloaded.", "model": "scripted", "tries": 1}


async def test_a_call_that_was_accepted_and_then_broke_is_made_again_and_its_usage_counts(harness: Harness) -> None:
    started = list(message_of())[:1]
    provider = ScriptedProvider([[*started, overloaded()], answer()])
    async with harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask(limits=Limits(max_recoveries=0)))
    assert (turn.status, turn.recoveries) == ("complete", 0), "no reader had seen anything yet"
    assert [(round.number, round.voided) for round in turn.rounds] == [(1, True), (1, False)]
    assert turn.usage == {"input_tokens": 20, "output_tokens": 6}


@pytest.mark.parametrize("reply", [[], list(message_of())[:1]])
async def test_retries_come_to_an_end(harness: Harness, reply: list[Step]) -> None:
    provider = ScriptedProvider(lambda _: [*reply, overloaded()])
    counted = {"reason": "overloaded_error"}
    before = REGISTRY.get_sample_value("turnstream_provider_retries_total", counted) or 0
    async with harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert REGISTRY.get_sample_value("turnstream_provider_retries_total", counted) == before + QUICK.most
    assert turn.status == turn.stop_reason == "error"
    assert turn.error is not None
    assert (turn.error.type, turn.error.request_id) == ("overloaded_error", "req_1")
    assert turn.error.message == "Overloaded. scripted was called 4 times within one second."
    assert len(provider.requests) == 1 + QUICK.most


async def test_a_success_gives_the_retries_back(harness: Harness) -> None:
    calls = message_of(tool_use("look", {}, "a"))
    failures = [[overloaded()] for _ in range(QUICK.most)]
    async with harness.replica(ScriptedProvider([*failures, calls, *failures, answer()]), [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert turn.status == "complete"


def test_the_providers_own_word_on_when_to_come_back_counts() -> None:
    retries = Retries(RetryPolicy(most=9, base=1.0, longest=4.0, max_retry_after=60))
    waits = {retries.delay(overloaded(retry_after=30.0), charged=True) for _ in range(4)}
    assert all(30 < wait <= 33 for wait in waits)
    assert len(waits) > 1, "not all turns together"
    with pytest.raises(PermanentError, match="The provider asks to wait 61 s"):
        retries.delay(overloaded(retry_after=61.0), charged=True)


@pytest.mark.parametrize("asked", [None, 0.0, 0.001])
def test_the_retries_are_not_spent_within_a_second_whatever_the_provider_asks_for(asked: float | None) -> None:
    policy = RetryPolicy()
    retries = Retries(policy)
    waits = [retries.delay(overloaded(retry_after=asked), charged=True) for _ in range(policy.most)]
    assert sum(waits) > 7
    assert waits[-1] >= policy.longest / 2


def test_a_busy_provider_is_left_alone_for_a_while() -> None:
    policy = RetryPolicy(base=0.01, longest=0.02)
    assert Retries(policy).delay(overloaded(busy=True), charged=True) >= policy.busy
    assert Retries(policy).delay(overloaded(), charged=True) <= 0.02


def test_a_replay_does_not_wait() -> None:
    retries = Retries(RetryPolicy(most=1, waits=False))
    assert retries.delay(overloaded(retry_after=30.0, busy=True), charged=True) == 0
    with pytest.raises(PermanentError):
        retries.delay(overloaded(), charged=True)


def test_waits_double_up_to_the_longest_with_jitter() -> None:
    for _ in range(20):
        retries = Retries(RetryPolicy(most=9, base=1.0, longest=4.0))
        waits = [retries.delay(overloaded(), charged=True) for _ in range(5)]
        assert all(most / 2 <= wait <= most for wait, most in zip(waits, [1, 2, 4, 4, 4], strict=True))
        retries.reset()
        assert retries.delay(overloaded(), charged=True) <= 1


async def test_a_provider_that_asks_for_too_long_a_wait_ends_the_turn_at_once(harness: Harness) -> None:
    provider = ScriptedProvider([[overloaded(retry_after=3600.0)]])
    async with harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert turn.error is not None
    assert turn.error.message == "Overloaded. The provider asks to wait 3600 s."
    assert len(provider.requests) == 1


async def test_a_permanent_error_is_not_tried_again(harness: Harness) -> None:
    refusal = PermanentError("invalid_request_error", "max_tokens: too large", request_id="req_9")
    provider = ScriptedProvider([[refusal]])
    async with harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.status, turn.rounds, turn.blocks) == ("error", (), ())
    assert turn.error is not None
    assert turn.error.type == "invalid_request_error"
    assert turn.error.request_id == "req_9"
    assert len(provider.requests) == 1


# --- in mid-sentence -------------------------------------------------------------------------------------------------


async def test_an_interrupted_round_is_written_again_and_readers_get_a_reset(harness: Harness) -> None:
    pause = Pause()
    whole = list(message_of(thinking("hm"), text("Half a ", "sentence")))
    provider = ScriptedProvider([[*whole[:-2], pause, overloaded()], answer()])
    async with harness.replica(provider) as replica:
        asked = await harness.ask(limits=RETRY)
        replica.worker.wake()
        await pause.reached.wait()
        client = Client()
        watching = asyncio.create_task(harness.follow(replica, asked, client))
        await _attached(replica, asked.turn)
        assert [piece.text for piece in client.blocks] == ["hm", "Half a sentence"]
        pause.go.set()
        await watching
        turn = await harness.finish(replica, asked)
    client.assert_holds(turn)
    assert (client.resets, texts_of(turn), turn.attempt) == ([0], [ANSWER], 2)
    assert provider.requests[0].messages == provider.requests[1].messages
    assert turn.usage == {"input_tokens": 20, "output_tokens": 6}, "the voided call is paid for"
    assert degraded(turn) == (Degraded("rewritten", round=1, output_tokens=5, estimated=True),)


async def test_an_interrupted_text_is_kept_and_continued(harness: Harness) -> None:
    provider = ScriptedProvider([broken(text("Half a ", "sentence")), answer()])
    async with harness.replica(provider) as replica:
        asked = await harness.ask()
        turn = await harness.finish(replica, asked)
        client = await harness.follow(replica, asked)
    assert (turn.status, turn.attempt, texts_of(turn)) == ("complete", 1, ["Half a sentence", ANSWER])
    assert [block.interrupted for block in turn.blocks] == [True, False]
    assert [round.stop_reason for round in turn.rounds] == ["interrupted", "end_turn"]
    assert client.resets == []
    sent = [(message.role, message.blocks[0].text) for message in provider.requests[1].messages]
    assert sent == [("user", "Hello"), ("assistant", "Half a sentence"), ("user", GO_ON)]
    assert degraded(turn) == (Degraded("continued", round=1, output_tokens=4, estimated=True),)


async def test_a_reply_that_repeats_the_kept_text_continues_without_the_repetition(harness: Harness) -> None:
    again = message_of(thinking("hm"), text("sentence ", "has a ", "second half."))
    asked_anew = message_of(text("Half a sentence ", "has a second half. And more."))
    cut = broken(text("Half a ", "sente"))
    for reply, rest in ((again, "nce has a second half."), (asked_anew, "nce has a second half. And more.")):
        async with harness.replica(ScriptedProvider([cut, reply])) as replica:
            asked = await harness.ask()
            turn = await harness.finish(replica, asked)
            (await harness.follow(replica, asked)).assert_holds(turn)
        assert texts_of(turn) == ["Half a sente", rest]


async def test_a_repetition_that_breaks_off_too_leaves_no_block(harness: Harness) -> None:
    provider = ScriptedProvider([broken(text("Half a sen")), broken(text("Half ")), message_of(text("a sentence."))])
    async with harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.status, texts_of(turn)) == ("complete", ["Half a sen", "tence."])
    assert [(round.number, round.stop_reason) for round in turn.rounds] == [
        (1, "interrupted"),
        (2, "voided"),
        (2, "end_turn"),
    ]
    assert [item.what for item in degraded(turn)] == ["continued"], "nobody has seen the second try"


async def test_a_text_interrupted_several_times_is_continued_as_one(harness: Harness) -> None:
    replies = [broken(text("One, ")), broken(text("two, ")), message_of(text("One, two, ", "three."))]
    async with harness.replica(ScriptedProvider(replies)) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert "".join(texts_of(turn)) == "One, two, three."


async def test_thinking_alone_is_not_continued(harness: Harness) -> None:
    provider = ScriptedProvider([broken(thinking("hm"), drop=0), broken(thinking("h", "m"), drop=2), answer()])
    async with harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.attempt, texts_of(turn)) == (3, [ANSWER])


@pytest.mark.parametrize("recovery", ["retry", "continue"])
async def test_a_complete_call_is_run_though_the_reply_broke_off_after_it(
    harness: Harness, recovery: RecoveryPolicy
) -> None:
    cut = broken(text("I look."), tool_use("look", {}, "a"), text("And then"))
    provider = ScriptedProvider([cut, answer()])
    async with harness.replica(provider, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look], limits=Limits(recovery=recovery)))
    assert (turn.status, turn.attempt) == ("complete", 1)
    assert results_of(turn)["a"].text == "seen"
    assert [block.text for block in turn.blocks if block.interrupted] == ["And then"]
    assert [round.stop_reason for round in turn.rounds] == ["interrupted", "end_turn"]


@pytest.mark.parametrize(("limits", "attempt", "texts"), [(RETRY, 2, []), (CONTINUE, 1, ["I look."])])
async def test_a_call_that_was_cut_is_not_run(harness: Harness, limits: Limits, attempt: int, texts: list[str]) -> None:
    provider = ScriptedProvider([broken(text("I look."), tool_use("look", {}, "a")), answer()])
    async with harness.replica(provider, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look], limits=limits))
    assert (turn.attempt, texts_of(turn), results_of(turn)) == (attempt, [*texts, ANSWER], {})


@pytest.mark.parametrize("limits", [replace(RETRY, max_recoveries=2), replace(CONTINUE, max_recoveries=2)])
async def test_interruptions_without_progress_come_to_an_end(harness: Harness, limits: Limits) -> None:
    provider = ScriptedProvider([broken(text(words)) for words in ("Half", " of", " it")])
    async with harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask(limits=limits))
    assert turn.error is not None
    assert (turn.status, turn.error.type) == ("error", "overloaded_error")
    assert turn.error.message == (
        "Overloaded. The server gave up after too many interruptions. scripted was called 3 times within one second."
    )
    assert len(provider.requests) == 3
    assert texts_of(turn) == ["Half", " of", " it"][0 if limits.recovery == "continue" else 2 :], "the last text stays"
    assert turn.blocks[-1].interrupted


async def test_no_recoveries_means_none(harness: Harness) -> None:
    provider = always(text("Half"))
    async with harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask(limits=Limits(max_recoveries=0)))
    assert (turn.status, len(provider.requests)) == ("error", 1)


async def test_progress_gives_the_recoveries_back(harness: Harness) -> None:
    calls = message_of(tool_use("look", {}, "a"))
    provider = ScriptedProvider([broken(text("Ha")), calls, broken(text("lf")), answer()])
    async with harness.replica(provider, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look], limits=Limits(max_recoveries=1)))
    assert (turn.status, turn.recoveries) == ("complete", 0)


async def test_a_permanent_error_within_a_sentence_keeps_the_text(harness: Harness) -> None:
    cut = broken(text("I look."), tool_use("look", {}, "a"), text("Half"), by=PermanentError("api_error", "no"))
    async with harness.replica(ScriptedProvider([cut]), [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert (turn.status, texts_of(turn)) == ("error", ["I look.", "Half"])
    assert results_of(turn)["a"].text == "This call has no result: the turn ended (error)."


async def test_an_endless_reply_is_cut_and_keeps_its_text(harness: Harness) -> None:
    def endless(_: ModelRequest) -> Iterator[Step]:
        yield from list(message_of(text("")))[:2]
        while True:
            yield [BlockText(0, "a" * 100)]

    async with harness.replica(ScriptedProvider(endless), policy=with_model(POLICY, max_reply_chars=1000)) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert turn.error is not None
    assert (turn.status, turn.error.type) == ("error", "reply_too_long")
    assert texts_of(turn) == ["a" * 1100]


async def test_a_recovery_after_the_last_tool_round_still_may_use_no_tools(harness: Harness) -> None:
    calls = message_of(tool_use("look", {}, "a"))
    provider = ScriptedProvider([calls, broken(text("Half")), answer()])
    async with harness.replica(provider, [look]) as replica:
        await harness.finish(replica, await harness.ask(tools=[look], limits=replace(CONTINUE, max_rounds=1)))
    assert [request.may_use_tools for request in provider.requests] == [True, False, False]


# --- silence, and streams that do not end as they should -------------------------------------------------------------


IMPATIENT = with_model(POLICY, stall_timeout=0.03)


@pytest.mark.parametrize("begun", [[], list(message_of())[:1], list(message_of(text("Half")))[:3]])
async def test_a_provider_that_goes_silent_is_given_up_and_asked_again(harness: Harness, begun: list[Step]) -> None:
    provider = ScriptedProvider([[*begun, Pause()], answer()])
    async with harness.replica(provider, policy=IMPATIENT) as replica:
        turn = await harness.finish(replica, await harness.ask(limits=RETRY))
    assert (turn.status, texts_of(turn)) == ("complete", [ANSWER])


async def test_a_provider_that_stays_silent_is_an_error_that_says_so(harness: Harness) -> None:
    async with harness.replica(ScriptedProvider(lambda _: [Pause()]), policy=IMPATIENT) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert turn.error is not None
    assert (turn.error.type, turn.error.message) == (
        "stall_timeout",
        "The provider sent nothing for 0.03 s. scripted was called 4 times within one second.",
    )


async def test_waiting_for_postgres_is_not_the_providers_silence(harness: Harness) -> None:
    pause, policy = Pause(), with_model(POLICY, stall_timeout=0.25)  # shorter than the lock of the row is held
    provider = ScriptedProvider([[pause, *answer()]])
    async with harness.replica(provider, policy=policy) as replica, harness.locker() as locker:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        async with locker.holding("SELECT FROM turns WHERE id = $1 FOR UPDATE", asked.turn):
            pause.go.set()
            await locker.waiting()
            await asyncio.sleep(1.5 * policy.model.stall_timeout)
        turn = await harness.finish(replica, asked)
    assert (turn.status, len(provider.requests)) == ("complete", 1)


async def test_a_stream_that_ends_without_saying_so_is_made_again(harness: Harness) -> None:
    unfinished = list(message_of(text("Half")))[:-1]
    for reply in ([], unfinished[:1], unfinished):
        async with harness.replica(ScriptedProvider([reply, answer()])) as replica:
            turn = await harness.finish(replica, await harness.ask(limits=RETRY))
        assert (turn.status, texts_of(turn)) == ("complete", [ANSWER])


def _at_the_end(last: Sequence[Part]) -> list[Step]:
    return [*list(message_of(text(ANSWER)))[:-1], last]


async def test_a_reply_whose_end_is_known_is_whole_though_its_last_word_is_missing(harness: Harness) -> None:
    *_, (delta, _) = message_of()
    provider = ScriptedProvider([_at_the_end((delta,))])
    async with harness.replica(provider) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.stop_reason, len(provider.requests)) == ("end_turn", 1)


async def test_a_reply_that_ends_without_a_reason_is_the_end_of_the_turn(harness: Harness) -> None:
    async with harness.replica(ScriptedProvider([_at_the_end((MessageEnded(),))])) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.status, turn.stop_reason) == ("complete", "end_turn")


@pytest.mark.parametrize("after", [overloaded, Pause])
@pytest.mark.parametrize("parts", [1, 2])
async def test_nothing_that_comes_after_the_end_of_a_reply_takes_it_back(
    harness: Harness, after: Callable[[], Step], parts: int
) -> None:
    """The connection breaks, or stays open, after the last event."""
    *_, last = message_of()
    provider = ScriptedProvider([[*_at_the_end(last[:parts]), after()]])
    async with harness.replica(provider, policy=IMPATIENT) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.status, turn.stop_reason, turn.attempt, texts_of(turn)) == ("complete", "end_turn", 1, [ANSWER])


# --- a provider that does what none should ---------------------------------------------------------------------------


def _without_start(blocks: Sequence[Sequence[Part]]) -> list[Step]:
    return [*message_blocks(*blocks), list(message_of())[-1]]


async def test_a_reply_that_never_started_is_a_reply_all_the_same(harness: Harness) -> None:
    async with harness.replica(ScriptedProvider([_without_start([text(ANSWER)])])) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.status, texts_of(turn)) == ("complete", [ANSWER])


TWICE = [tool_use("look", {}, "a"), tool_use("look", {}, "a")]
NAMELESS = [[BlockOpened(0, "tool_use", "{}", "", None, None), tool_use("look", {}, "a")[-1]]]


@pytest.mark.parametrize("blocks", [TWICE, NAMELESS, [tool_use("lo\x00ok", {}, "\x00")]])
@pytest.mark.parametrize("in_one_batch", [False, True])
async def test_a_reply_that_cannot_be_stored_ends_its_turn_and_harms_no_other(
    harness: Harness, blocks: list[list[Part]], in_one_batch: bool
) -> None:
    bad = list(message_of(*blocks, text("More.")))
    if in_one_batch:
        bad = [[part for batch in bad for part in batch]]
    replies: list[Reply] = [bad, answer(), answer(), answer()]

    async with harness.replica(ScriptedProvider(_by_question(replies)), [look]) as replica:
        worse = await harness.finish(replica, await harness.ask("0", tools=[look]))
        other = await harness.finish(replica, await harness.ask("1"))
    assert worse.status in ("complete", "error")
    assert other.status == "complete"


@pytest.mark.full
async def test_a_call_with_an_id_that_is_taken_is_kept_when_the_turn_ends_within_it(harness: Harness) -> None:
    stopped = Pause()
    *reply, _, _ = message_of(*TWICE)
    replies: list[Reply] = [[*reply, PermanentError("api_error", "no")], [*reply, stopped], answer()]
    async with harness.replica(ScriptedProvider(_by_question(replies)), [look]) as replica:
        failed = await harness.finish(replica, await harness.ask("0", tools=[look]))
        asked = await harness.ask("1", tools=[look])
        replica.worker.wake()
        await stopped.reached.wait()
        await replica.cancel(asked)
        cancelled = await harness.finish(replica, asked)
        await harness.finish(replica, await harness.ask("2"))
    for turn, status in ((failed, "error"), (cancelled, "cancelled")):
        assert turn.status == status
        assert [(block.type, block.interrupted) for block in turn.blocks] == [
            ("tool_use", False),
            ("tool_use", True),
            ("tool_result", False),
        ]
        assert turn.blocks[2].tool_use_id == turn.blocks[0].tool_use_id


def _by_question(replies: Sequence[Reply]) -> Callable[[ModelRequest], Reply]:
    """Gives each conversation its own part of the replies. The conversation's first message is the number of its first
    reply.
    """
    iterators: dict[str, Iterator[Reply]] = {}

    def reply(request: ModelRequest) -> Reply:
        question = request.messages[0].blocks[0].text
        return next(iterators.setdefault(question, iter(replies[int(question) :])))

    return reply


class Broken:
    """A provider whose code has a bug."""

    name = "broken"

    async def stream(self, request: ModelRequest) -> Any:
        for batch in list(message_of(text("Half")))[:3]:
            yield batch
        raise ZeroDivisionError


async def test_a_bug_of_ours_ends_the_turn_as_an_error_that_does_not_tell_it(harness: Harness) -> None:
    async with harness.replica(Broken()) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert turn.error is not None
    assert (turn.status, turn.error.type, texts_of(turn)) == ("error", "internal_error", ["Half"])
    assert "ZeroDivision" not in turn.error.message


async def _attached(replica: Replica, turn: Any) -> None:
    """Waits until a reader is attached to the turn."""
    view = replica.directory.running(turn)
    assert view is not None
    while not view.wakeup.has_waiters:  # noqa: ASYNC110, a reader has no event for it
        await asyncio.sleep(0)


async def test_calls_with_one_id_are_each_run_and_go_back_with_their_results(harness: Harness) -> None:
    seen: list[str] = []

    @tool()
    async def note(text: str) -> str:
        """Note."""
        seen.append(text)
        return f"noted {text}"

    calls = (tool_use("note", {"text": "one"}, "a"), tool_use("note", {"text": "two"}, "a"))
    provider = ScriptedProvider([message_of(*calls), answer()])
    async with harness.replica(provider, [note]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[note]))
    assert (turn.status, texts_of(turn)) == ("complete", [ANSWER])
    assert sorted(seen) == ["one", "two"]
    sent = [block for message in provider.requests[1].messages for block in message.blocks]
    given = {block.tool_use_id: json.loads(block.text)["text"] for block in sent if block.type == "tool_use"}
    results = {block.tool_use_id: block.text for block in sent if block.type == "tool_result"}
    assert sorted(given.values()) == ["one", "two"]
    assert results == {id: f"noted {text}" for id, text in given.items()}
