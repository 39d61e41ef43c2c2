"""Cancellation of a turn in every phase: written text stays, every call gets a result, and usage is kept."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.support.harness import (
    OWNER,
    POLICY,
    Asked,
    Harness,
    Replica,
    assert_is_whole,
    results_of,
    rows_of,
    texts_of,
    with_model,
)
from tests.support.stream_client import Client
from turnstream.domain.errors import TransientError
from turnstream.domain.turns import Turn
from turnstream.engine.retries import RetryPolicy
from turnstream.llm.provider import Part
from turnstream.scripted import Pause, Reply, ScriptedProvider, Step, message_of, text, thinking, tool_use
from turnstream.storage.chats.chats import Chats
from turnstream.storage.chats.turns import Turns
from turnstream.tools.tool import tool

NO_RESULT = "This call has no result: the turn ended (cancelled)."


def answer() -> Reply:
    return message_of(text("There."))


def paused_after(count: int, *blocks: Sequence[Part]) -> tuple[Pause, list[Step]]:
    """Returns a message that pauses after its first `count` batches. The first batch is its start."""
    pause, whole = Pause(), list(message_of(*blocks))
    return pause, [*whole[:count], pause, *whole[count:]]


async def cancelled(harness: Harness, replica: Replica, asked: Asked) -> Turn:
    """Cancels the turn twice while a reader watches. Returns the turn."""
    watching = asyncio.create_task(harness.follow(replica, asked))
    await replica.cancel(asked)
    await replica.cancel(asked)
    turn = await harness.finish(replica, asked)
    (await watching).assert_holds(turn)
    assert turn.status == turn.stop_reason == "cancelled"
    assert turn.error is None
    rows = await rows_of(harness.database, asked)
    assert await replica.cancel(asked) == turn, "it is idempotent"
    assert await rows_of(harness.database, asked) == rows
    return turn


# --- before the first text -------- ------------------------------------------------------------------------------


async def test_a_turn_in_the_queue_is_cancelled_at_once(harness: Harness) -> None:
    asked = await harness.ask()
    turn = await Turns(harness.database).cancel(OWNER, asked.chat, asked.turn)
    assert (turn.status, turn.stop_reason, turn.attempt) == ("cancelled", "withdrawn", 0)
    provider = ScriptedProvider([])
    async with harness.replica(provider) as replica:
        await harness.finish(replica, asked)
    assert provider.requests == []


async def test_a_turn_is_cancelled_while_its_path_is_read(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    pause, read = Pause(), Turns.claimed

    async def slowly(turns: Turns, *which: object) -> object:
        pause.reached.set()
        await pause.go.wait()
        return await read(turns, *which)  # type: ignore[arg-type]

    monkeypatch.setattr(Turns, "claimed", slowly)
    provider = ScriptedProvider([])
    async with harness.replica(provider) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        await replica.cancel(asked)
        pause.go.set()
        turn = await harness.finish(replica, asked)
    assert (turn.status, provider.requests) == ("cancelled", [])


async def test_a_turn_is_cancelled_while_it_waits_for_the_first_byte(harness: Harness) -> None:
    pause, reply = paused_after(0)
    async with harness.replica(ScriptedProvider([reply])) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        turn = await cancelled(harness, replica, asked)
    assert (turn.rounds, turn.blocks, turn.usage) == ((), (), {})


async def test_a_turn_is_cancelled_while_it_waits_to_try_again(harness: Harness) -> None:
    slow = with_model(POLICY, retries=RetryPolicy(base=1000, longest=1000))
    pause = Pause()
    provider = ScriptedProvider([[pause, TransientError("overloaded_error", "Overloaded")]])
    async with harness.replica(provider, policy=slow) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        view = replica.view(asked)
        pause.go.set()
        while not view.notice_number:
            await view.wakeup.wait()
        turn = await cancelled(harness, replica, asked)
    assert turn.rounds == ()


# --- while the model talks -------------------------------------------------------------------------------------------


async def test_half_a_sentence_stays_and_is_marked(harness: Harness) -> None:
    pause, reply = paused_after(7, thinking("hm"), text("Half a ", "sentence"))
    async with harness.replica(ScriptedProvider([reply])) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        turn = await cancelled(harness, replica, asked)
    assert [(block.type, block.text, block.interrupted) for block in turn.blocks] == [
        ("thinking", "hm", False),
        ("text", "Half a ", True),
    ]
    assert turn.usage == {"input_tokens": 10, "output_tokens": 1}, "what the provider had counted"
    assert [round.stop_reason for round in turn.rounds] == ["cancelled"]


async def test_a_thought_that_was_cut_stays_too(harness: Harness) -> None:
    pause, reply = paused_after(3, thinking("h", "m"))
    async with harness.replica(ScriptedProvider([reply])) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        turn = await cancelled(harness, replica, asked)
    assert [(block.type, block.text, block.interrupted) for block in turn.blocks] == [("thinking", "h", True)]


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


async def test_calls_before_the_seal_get_results_and_a_call_that_was_cut_gets_none(harness: Harness) -> None:
    pause, reply = paused_after(7, tool_use("look", {}, "whole"), tool_use("look", {"a": 1}, "cut"))
    async with harness.replica(ScriptedProvider([reply]), [look]) as replica:
        asked = await harness.ask(tools=[look])
        replica.worker.wake()
        await pause.reached.wait()
        turn = await cancelled(harness, replica, asked)
    assert {id: result.text for id, result in results_of(turn).items()} == {"whole": NO_RESULT}
    assert [block.tool_use_id for block in turn.blocks if block.interrupted] == ["cut"]


async def test_changes_of_one_read_are_not_lost_when_the_turn_is_cancelled_between_their_writes(
    harness: Harness,
) -> None:
    """The first of four blocks waits for a lock when the turn is cancelled. The last block is still open."""
    blocks = [text("One."), tool_use("look", {}, "a"), tool_use("look", {}, "b"), text("Two.", " More.")]
    whole = list(message_of(*blocks))
    pause = Pause()
    at_once = [part for batch in whole[1:-3] for part in batch]
    provider = ScriptedProvider([[pause, whole[0], at_once, Pause()]])
    async with harness.replica(provider, [look]) as replica, harness.locker() as locker:
        asked = await harness.ask(tools=[look])
        replica.worker.wake()
        await pause.reached.wait()
        async with locker.holding("SELECT FROM turns WHERE id = $1 FOR UPDATE", asked.turn):
            pause.go.set()
            await locker.waiting()
            replica.worker.receive(f"cancel {asked.turn}")
        turn = await harness.finish(replica, asked)
    assert turn.status == "cancelled"
    assert texts_of(turn) in ([], ["One.", "Two."]), "all that was read, or nothing of it"
    assert set(results_of(turn)) in (set(), {"a", "b"})


@pytest.mark.parametrize("place", range(1, 6))
async def test_a_cancellation_that_meets_a_write_waits_for_it(harness: Harness, place: int) -> None:
    """The write may begin the round, store a block or seal the round."""
    whole = list(message_of(text("One."), tool_use("look", {}, "a")))
    writes = [0, 2, 6, 7]
    pause = Pause()
    at = writes[min(place, len(writes)) - 1]
    provider = ScriptedProvider([[*whole[:at], pause, *whole[at:]], answer()])
    async with harness.replica(provider, [look]) as replica, harness.locker() as locker:
        asked = await harness.ask(tools=[look])
        replica.worker.wake()
        await pause.reached.wait()
        async with locker.holding("SELECT FROM turns WHERE id = $1 FOR UPDATE", asked.turn):
            pause.go.set()
            await locker.waiting()
            replica.worker.receive(f"cancel {asked.turn}")
        turn = await harness.finish(replica, asked)
    assert turn.status == "cancelled"


# --- while tools run -------------------------------------------------------------------------------------------------


class Bench:
    """A tool that works until it is cancelled or released."""

    def __init__(self) -> None:
        self.started, self.go, self.stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool()
    async def work(self) -> str:
        """Work."""
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return "worked"


async def test_a_running_tool_is_stopped_and_settled_calls_stay(harness: Harness) -> None:
    bench = Bench()
    reply = message_of(tool_use("look", {}, "a"), tool_use("work", {}, "b"))
    tools = [look, bench.work]
    async with harness.replica(ScriptedProvider([reply]), tools) as replica:
        asked = await harness.ask(tools=tools)
        replica.worker.wake()
        await bench.started.wait()
        view = replica.view(asked)
        while "a" not in results_of(view.turn):
            await view.wakeup.wait()
        turn = await cancelled(harness, replica, asked)
    assert bench.stopped.is_set()
    assert {id: result.text for id, result in results_of(turn).items()} == {"a": "seen", "b": NO_RESULT}
    assert turn.usage == {"input_tokens": 10, "output_tokens": 5}


async def test_a_tool_that_does_not_stop_delays_no_cancellation(harness: Harness) -> None:
    started, released = asyncio.Event(), asyncio.Event()

    @tool()
    async def stubborn() -> str:
        """Never stop."""
        started.set()
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    async with harness.replica(ScriptedProvider([message_of(tool_use("stubborn", {}, "a"))]), [stubborn]) as replica:
        asked = await harness.ask(tools=[stubborn])
        replica.worker.wake()
        await started.wait()
        turn = await cancelled(harness, replica, asked)
        released.set()
    assert results_of(turn)["a"].text == NO_RESULT


async def test_a_tool_that_was_started_early_is_stopped_with_its_reply(harness: Harness) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @tool(read_only=True)
    async def read() -> str:
        """Read."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    _, reply = paused_after(5, tool_use("read", {}, "a"), text("More."))
    async with harness.replica(ScriptedProvider([reply]), [read]) as replica:
        asked = await harness.ask(tools=[read])
        replica.worker.wake()
        await started.wait()
        turn = await cancelled(harness, replica, asked)
    assert stopped.is_set()
    assert results_of(turn)["a"].text == NO_RESULT


async def test_a_turn_is_cancelled_between_its_tools_and_the_next_reply(harness: Harness) -> None:
    pause, second = paused_after(0)
    provider = ScriptedProvider([message_of(tool_use("look", {}, "a")), second])
    async with harness.replica(provider, [look]) as replica:
        asked = await harness.ask(tools=[look])
        replica.worker.wake()
        await pause.reached.wait()
        turn = await cancelled(harness, replica, asked)
    assert results_of(turn)["a"].text == "seen"
    assert len(turn.rounds) == 1


async def test_a_turn_that_has_ended_is_not_cancelled(harness: Harness) -> None:
    async with harness.replica(ScriptedProvider([answer()])) as replica:
        asked = await harness.ask()
        turn = await harness.finish(replica, asked)
        assert await replica.cancel(asked) == turn
        assert (await harness.turn(asked)).status == "complete"


async def test_a_conversation_continues_after_a_cancelled_turn(harness: Harness) -> None:
    pause, reply = paused_after(7, tool_use("look", {}, "whole"), text("Half", "."))
    provider = ScriptedProvider([reply, answer()])
    async with harness.replica(provider, [look]) as replica:
        first = await harness.ask(tools=[look])
        replica.worker.wake()
        await pause.reached.wait()
        await cancelled(harness, replica, first)
        turn = await harness.finish(replica, await harness.ask("again", after=first, tools=[look]))
    assert texts_of(turn) == ["There."]
    sent = [(message.role, [block.type for block in message.blocks]) for message in provider.requests[1].messages]
    assert sent == [("user", ["text"]), ("assistant", ["tool_use"]), ("user", ["tool_result", "text"])]


# --- when the chat is gone -------------------------------------------------------------------------------------------


async def test_a_chat_that_is_deleted_stops_its_turn_and_ends_its_streams(harness: Harness) -> None:
    pause, reply = paused_after(3, text("Half", "."))
    provider = ScriptedProvider([reply, answer()])
    async with harness.replica(provider) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        client = Client()
        watching = asyncio.create_task(harness.follow(replica, asked, client))
        while not client.blocks:  # noqa: ASYNC110, a client has no event for it
            await asyncio.sleep(0)
        await Chats(harness.database).delete(OWNER, asked.chat)
        pause.go.set()
        await watching
        assert client.end is not None
        assert (client.end.status, client.end.stop_reason) == ("cancelled", "deleted")
        await replica.idle(asked)
        await harness.finish(replica, await harness.ask())
    for rows in await rows_of(harness.database, asked):
        assert rows == []


# --- when the claim is lost ------------------------------------------------------------------------------------------


def _mid_text() -> tuple[Pause, list[Step]]:
    return paused_after(3, text("Half", "."), tool_use("look", {}, "a"))


def _before_the_first_byte() -> tuple[Pause, list[Step]]:
    return paused_after(0, text("Never."))


def _before_the_seal() -> tuple[Pause, list[Step]]:
    return paused_after(6, text("Said", "."))


@pytest.mark.parametrize("phase", [_mid_text, _before_the_first_byte, _before_the_seal])
async def test_an_owner_that_lost_its_claim_stops_and_touches_nothing(
    harness: Harness, phase: Callable[[], tuple[Pause, list[Step]]]
) -> None:
    pause, reply = phase()
    async with harness.replica(ScriptedProvider([reply, answer()]), [look]) as replica, harness.locker() as other:
        asked = await harness.ask(tools=[look])
        replica.worker.wake()
        await pause.reached.wait()
        await other.connection.execute("UPDATE turns SET attempt = attempt + 1 WHERE id = $1", asked.turn)
        rows = await rows_of(harness.database, asked)
        pause.go.set()
        await replica.idle(asked)
        assert await rows_of(harness.database, asked) == rows
        await harness.finish(replica, await harness.ask())
        await _set_status(other.connection.execute, asked)
        assert_is_whole(await harness.finish(replica, asked))


async def test_an_owner_that_lost_its_claim_stops_its_tools(harness: Harness) -> None:
    bench = Bench()
    reply = message_of(tool_use("look", {}, "a"), tool_use("work", {}, "b"))
    async with (
        harness.replica(ScriptedProvider([reply, answer()]), [look, bench.work]) as replica,
        harness.locker() as other,
    ):
        asked = await harness.ask(tools=[look, bench.work])
        replica.worker.wake()
        await bench.started.wait()
        view = replica.view(asked)
        while "a" not in results_of(view.turn):
            await view.wakeup.wait()
        await other.connection.execute("UPDATE turns SET attempt = attempt + 1 WHERE id = $1", asked.turn)
        rows = await rows_of(harness.database, asked)
        replica.worker.receive(f"cancel {asked.turn}")
        await bench.stopped.wait()
        await replica.idle(asked)
        assert await rows_of(harness.database, asked) == rows


async def _set_status(execute: Callable[..., Awaitable[object]], asked: Asked) -> None:
    """Puts the turn back into the queue, as if its new owner had released it."""
    await execute("UPDATE turns SET status = 'queued', replica = NULL WHERE id = $1", asked.turn)
