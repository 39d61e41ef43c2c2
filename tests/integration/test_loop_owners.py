"""Turns that move to another replica because their replica dies, stops, sleeps and wakes up, or is full."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.integration.proxy import proxied
from tests.support import harness as harness_module
from tests.support.harness import OWNER, POLICY, Asked, Harness, Replica, results_of, rows_of, texts_of
from tests.support.locks import Locker
from tests.support.stream_client import Client
from turnstream.domain.errors import TransientError
from turnstream.domain.turns import Limits, RecoveryPolicy, Turn
from turnstream.engine import worker
from turnstream.engine.tool_gate import OUTCOME_UNKNOWN
from turnstream.kit.ids import new_id
from turnstream.llm.provider import Part
from turnstream.scripted import Pause, Reply, ScriptedProvider, Step, message_of, text, tool_use
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import connect
from turnstream.storage.runs.queue import QUEUED
from turnstream.storage.runs.session import ReplicaSession
from turnstream.tools.tool import Tool, tool

HERE = "this machine:8000"
AT_ONCE = replace(POLICY, grace_period=0)
RETRY = Limits(recovery="retry")


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


def answer(content: str = "There.") -> Reply:
    return message_of(text(content))


def paused_after(count: int, *blocks: Sequence[Part]) -> tuple[Pause, list[Step]]:
    pause, whole = Pause(), list(message_of(*blocks))
    return pause, [*whole[:count], pause, *whole[count:]]


async def _watch(harness: Harness, replica: Replica, asked: Asked) -> Client:
    """Returns a client that has read everything so far and was then disconnected."""
    client = Client()
    reading = asyncio.create_task(harness.follow(replica, asked, client))
    view = replica.view(asked)
    while client.cursor.place < len(view.marks) or client.cursor.offset < view.open_length:  # noqa: ASYNC110
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return client


async def _died(harness: Harness, pause: Pause, reply: list[Step], asked: Asked, tools: Sequence[Tool] = ()) -> Client:
    """Runs the turn up to its pause and one tick of the journal, then kills the replica. Returns the client with the
    text that it had received.
    """
    async with harness.replica(ScriptedProvider([reply]), tools, address=HERE) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        await replica.store_open()
        client = await _watch(harness, replica, asked)
        await replica.kill()
    return client


async def _taken_over(
    harness: Harness, asked: Asked, client: Client, replies: Sequence[Reply], tools: Sequence[Tool] = ()
) -> tuple[Turn, ScriptedProvider]:
    """Starts the next process at the same address, reconnects the client, and returns the turn at its end."""
    provider = ScriptedProvider(replies)
    async with harness.replica(provider, tools, address=HERE) as replica:
        watching = asyncio.create_task(harness.follow(replica, asked, client))
        turn = await harness.finish(replica, asked)
        (await watching).assert_holds(turn)
    return turn, provider


# --- killed ----------------------------------------------------------------------------------------------------------


async def test_a_turn_whose_replica_was_killed_before_the_first_byte_is_asked_again(harness: Harness) -> None:
    asked = await harness.ask()
    client = await _died(harness, *paused_after(0), asked)
    turn, _ = await _taken_over(harness, asked, client, [answer()])
    assert (turn.status, turn.attempt, turn.recoveries, texts_of(turn)) == ("complete", 2, 0, ["There."])
    assert client.resets == []


async def test_a_turn_of_a_replica_killed_within_a_sentence_is_written_again(harness: Harness) -> None:
    asked = await harness.ask(limits=RETRY)
    client = await _died(harness, *paused_after(3, text("Half a ", "sentence")), asked)
    assert [piece.text for piece in client.blocks] == ["Half a "]
    turn, _ = await _taken_over(harness, asked, client, [answer()])
    assert (turn.status, turn.attempt, texts_of(turn)) == ("complete", 3, ["There."])
    assert client.resets == [0]
    assert turn.usage == {"input_tokens": 20, "output_tokens": 6}, "the lost call is paid for as far as it is known"


async def test_a_journaled_sentence_is_kept_and_continued(harness: Harness) -> None:
    asked = await harness.ask()
    client = await _died(harness, *paused_after(3, text("Half a ", "sentence")), asked)
    turn, _ = await _taken_over(harness, asked, client, [answer()])
    assert (turn.attempt, texts_of(turn)) == (2, ["Half a ", "There."])
    assert [block.interrupted for block in turn.blocks] == [True, False]
    assert client.resets == [], "nothing to forget"


async def test_text_that_no_journal_holds_is_taken_back_even_where_the_rest_is_kept(harness: Harness) -> None:
    asked = await harness.ask()
    journaled, reply = paused_after(3, text("Half a ", "sentence"))
    lost = Pause()
    provider = ScriptedProvider([[*reply[:5], lost]])
    async with harness.replica(provider, address=HERE) as replica:
        replica.worker.wake()
        await journaled.reached.wait()
        await replica.store_open()
        replica.journaling.tick = _nothing  # type: ignore[method-assign]
        journaled.go.set()
        await lost.reached.wait()
        client = await _watch(harness, replica, asked)
        await replica.kill()
    assert [piece.text for piece in client.blocks] == ["Half a sentence"]
    turn, _ = await _taken_over(harness, asked, client, [answer()])
    assert (turn.attempt, texts_of(turn)) == (2, ["Half a ", "There."])
    assert client.resets == [0]


async def _nothing() -> bool:
    return False


@pytest.mark.parametrize("recovery", ["retry", "continue"])
async def test_calls_that_were_complete_when_the_replica_was_killed_are_run(
    harness: Harness, recovery: RecoveryPolicy
) -> None:
    asked = await harness.ask(tools=[look], limits=Limits(recovery=recovery))
    pause, reply = paused_after(7, tool_use("look", {}, "a"), text("And ", "then"))
    client = await _died(harness, pause, reply, asked, [look])
    turn, provider = await _taken_over(harness, asked, client, [answer()], [look])
    assert (turn.attempt, results_of(turn)["a"].text, len(provider.requests)) == (2, "seen", 1)
    assert [block.text for block in turn.blocks if block.interrupted] == ["And "]
    assert client.resets == []


async def test_settled_calls_stay_and_only_repeatable_ones_run_again(harness: Harness) -> None:
    started = {name: asyncio.Semaphore(0) for name in ("read", "write", "put")}
    pause = Pause()

    @tool(read_only=True)
    async def read() -> str:
        """Has no effect."""
        started["read"].release()
        await pause.go.wait()
        return "read"

    @tool()
    async def write() -> str:
        """Has one."""
        started["write"].release()
        await asyncio.Event().wait()
        return "never"

    @tool(retry_safe=True)
    async def put() -> str:
        """Has one, which is the same however often it is done."""
        started["put"].release()
        await pause.go.wait()
        return "put"

    tools = [look, read, write, put]
    asked = await harness.ask(tools=tools)
    reply = message_of(*(tool_use(name, {}, name) for name in ("look", "read", "write", "put")))
    async with harness.replica(ScriptedProvider([reply]), tools, address=HERE) as replica:
        replica.worker.wake()
        for one in started.values():
            await one.acquire()
        view = replica.view(asked)
        while not results_of(view.turn):
            await view.wakeup.wait()
        client = await _watch(harness, replica, asked)
        await replica.kill()
    pause.go.set()
    turn, _ = await _taken_over(harness, asked, client, [answer()], tools)
    assert {id: result.text for id, result in results_of(turn).items()} == {
        "look": "seen",
        "read": "read",
        "write": OUTCOME_UNKNOWN,
        "put": "put",
    }
    assert client.resets == []


async def test_a_turn_whose_replica_was_killed_as_it_was_cancelled_ends_cancelled(harness: Harness) -> None:
    asked = await harness.ask()
    client = await _died(harness, *paused_after(3, text("Half", ".")), asked)
    await Turns(harness.database).cancel(OWNER, asked.chat, asked.turn)
    turn, provider = await _taken_over(harness, asked, client, [])
    assert (turn.status, texts_of(turn), provider.requests) == ("cancelled", ["Half"], [])


async def test_a_turn_that_kills_every_replica_comes_to_an_end(harness: Harness) -> None:
    asked = await harness.ask(limits=replace(RETRY, max_recoveries=2))
    client = Client()
    for _ in range(3):
        client = await _died(harness, *paused_after(3, text("Half", ".")), asked)
    turn, provider = await _taken_over(harness, asked, client, [])
    assert turn.error is not None
    assert (turn.status, provider.requests) == ("error", [])
    assert "too often without progress" in turn.error.message
    assert texts_of(turn) == ["Half"], "the last text stays"


async def test_turns_of_a_replica_without_a_row_are_taken_over(harness: Harness) -> None:
    pause, reply = paused_after(3, text("Half", "."))
    asked = await harness.ask()
    async with harness.replica(ScriptedProvider([reply])) as gone, harness.locker() as other:
        gone.worker.wake()
        await pause.reached.wait()
        await gone.kill()
        await other.connection.execute("DELETE FROM replicas")
    async with harness.replica(ScriptedProvider([answer()])) as replica:
        turn = await harness.finish(replica, asked)
    assert (turn.status, texts_of(turn)) == ("complete", ["There."])


# --- rounds that no row holds yet ------------------------------------------------------------------------------------


@pytest.fixture
def only_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops all ticks. A test makes them by hand."""
    monkeypatch.setattr(harness_module, "TICK", 60)


@pytest.mark.usefixtures("only_by_hand")
async def test_rounds_that_have_begun_are_shown_at_once_and_stored_together(harness: Harness) -> None:
    (first, one), (second, two) = (paused_after(2, text("Half a ", "sentence")) for _ in range(2))
    asked = [await harness.ask(), await harness.ask()]
    async with harness.replica(ScriptedProvider([one, two])) as replica:
        replica.worker.wake()
        await asyncio.gather(first.reached.wait(), second.reached.wait())
        shown = [replica.view(each).turn.rounds for each in asked]
        assert [len(rounds) for rounds in shown] == [1, 1]
        assert [(await harness.turn(each)).rounds for each in asked] == [(), ()]
        await replica.rounds.flush()
        assert [(await harness.turn(each)).rounds for each in asked] == shown
        first.go.set()
        second.go.set()
        turns = [await harness.finish(replica, each) for each in asked]
    assert [(turn.status, turn.attempt, *texts_of(turn)) for turn in turns] == [("complete", 1, "Half a sentence")] * 2


@pytest.mark.usefixtures("only_by_hand")
async def test_a_round_without_a_row_is_gone_with_its_replica_and_clients_discard_it(harness: Harness) -> None:
    asked = await harness.ask()
    pause, reply = paused_after(3, text("Half a ", "sentence"))
    async with harness.replica(ScriptedProvider([reply]), address=HERE) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        await replica.journaling.tick()
        client = await _watch(harness, replica, asked)
        await replica.kill()
    turn, _ = await _taken_over(harness, asked, client, [answer()])
    assert (turn.status, turn.attempt, len(turn.rounds), texts_of(turn)) == ("complete", 2, 1, ["There."])
    assert client.resets == [0]


@pytest.mark.usefixtures("only_by_hand")
@pytest.mark.parametrize("fails", [True, False], ids=["fails", "stops"])
async def test_a_round_without_a_row_is_stored_where_its_run_leaves_it(harness: Harness, fails: bool) -> None:
    asked = await harness.ask(limits=RETRY)
    pause, reply = paused_after(3, text("Half a ", "sentence"))
    replies: list[Reply] = [[*reply[:4], TransientError("api_error", "No.")], answer()] if fails else [reply]
    async with harness.replica(ScriptedProvider(replies), policy=AT_ONCE, address=HERE) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        if fails:
            pause.go.set()
            await replica.idle(asked)
    turn = await harness.turn(asked)
    assert turn.rounds[0].usage["input_tokens"] == 10
    assert turn.rounds[0].voided == fails


# --- stopped as one should -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [Limits(recovery="retry", max_recoveries=0), Limits(max_recoveries=0)])
async def test_a_stop_hands_turns_back_uncharged_and_the_next_worker_finishes_them(
    harness: Harness, limits: Limits
) -> None:
    pause, reply = paused_after(3, text("Half a ", "sentence"))
    asked = await harness.ask(limits=limits)
    async with harness.replica(ScriptedProvider([reply]), policy=AT_ONCE) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        client = await _watch(harness, replica, asked)
    released = await harness.turn(asked)
    assert (released.status, released.recoveries) == ("queued", 0)
    turn, provider = await _taken_over(harness, asked, client, [answer()])
    kept = limits.recovery == "continue"
    assert (turn.status, texts_of(turn)) == ("complete", ["Half a ", "There."] if kept else ["There."])
    assert client.resets == ([] if kept else [0])
    assert len(provider.requests) == 1


async def test_a_stop_before_the_first_text_costs_nothing(harness: Harness) -> None:
    pause, reply = paused_after(0)
    asked = await harness.ask()
    async with harness.replica(ScriptedProvider([reply]), policy=AT_ONCE) as replica:
        replica.worker.wake()
        await pause.reached.wait()
    turn, _ = await _taken_over(harness, asked, Client(), [answer()])
    assert (turn.status, turn.recoveries) == ("complete", 0)


async def test_running_tools_are_stopped_by_a_stop_and_started_again(harness: Harness) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @tool(retry_safe=True)
    async def work() -> str:
        """Work until it is cancelled, the first time."""
        if started.is_set():
            return "worked"
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    asked = await harness.ask(tools=[work])
    reply = message_of(tool_use("work", {}, "a"))
    async with harness.replica(ScriptedProvider([reply]), [work], policy=AT_ONCE) as replica:
        replica.worker.wake()
        await started.wait()
    assert stopped.is_set()
    turn, _ = await _taken_over(harness, asked, Client(), [answer()], [work])
    assert results_of(turn)["a"].text == "worked"


async def test_turns_that_end_in_the_grace_period_are_not_stopped(harness: Harness) -> None:
    pause, reply = paused_after(3, text("Half a ", "sentence"))
    asked, later = await harness.ask(), await harness.ask()
    async with harness.replica(ScriptedProvider([reply]), policy=replace(POLICY, concurrent_turns=1)) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        stopping = asyncio.create_task(replica.stop())
        while not replica.worker.draining:  # noqa: ASYNC110, a worker has no event for it
            await asyncio.sleep(0)
        pause.go.set()
        await stopping
    assert (await harness.turn(asked)).status == "complete"
    assert (await harness.turn(later)).status == "queued", "nothing is claimed any more"


async def test_a_second_stop_waits_for_nothing(harness: Harness) -> None:
    pause, reply = paused_after(3, text("Half", "."))
    asked = await harness.ask()
    async with harness.replica(ScriptedProvider([reply])) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        draining = asyncio.create_task(replica.worker.drain())
        while not replica.worker.draining:  # noqa: ASYNC110, a worker has no event for it
            await asyncio.sleep(0)
        await asyncio.wait_for(replica.stop(), 10)
        await draining
    assert (await harness.turn(asked)).status == "queued"


async def test_a_stop_comes_to_an_end_though_postgres_is_away(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica takes over the turns that were not returned, like turns of a dead replica."""
    monkeypatch.setattr(worker, "FINAL_WRITE_TIMEOUT", 0.05)
    pause, reply = paused_after(3, text("Half", "."))
    asked = await harness.ask()
    async with (
        proxied(harness.url) as (url, way),
        connect(url, size=5) as database,
        Harness(url, database).replica(ScriptedProvider([reply]), policy=AT_ONCE) as replica,
    ):
        replica.worker.wake()
        await pause.reached.wait()
        way.cut()
        await asyncio.wait_for(replica.stop(), 10)
    assert (await harness.turn(asked)).status == "running"


async def test_a_notification_that_cannot_be_sent_fails_no_request(harness: Harness) -> None:
    """The row already has the request, so the client must not get an error."""
    async with (
        proxied(harness.url) as (url, way),
        connect(url, size=5) as database,
        Harness(url, database).replica(ScriptedProvider([])) as replica,
    ):
        way.cut()
        await replica.worker.cancel(new_id())
        await replica.worker.refresh(new_id())


async def test_turns_that_are_claimed_during_a_stop_go_back_uncharged(harness: Harness) -> None:
    async with harness.replica(ScriptedProvider([answer()]), policy=AT_ONCE) as replica, harness.locker() as locker:
        await harness.finish(replica, await harness.ask())
        asked = await harness.ask()
        async with locker.holding("LOCK TABLE turns IN SHARE MODE"):
            replica.worker.wake()
            await locker.waiting()
            stopping = asyncio.create_task(replica.stop())
            await asyncio.sleep(0)
        await stopping
    left = await harness.turn(asked)
    assert (left.status, left.recoveries) == ("queued", 0)


async def test_a_turn_that_was_released_and_then_cancelled_is_not_run_again(harness: Harness) -> None:
    pause, reply = paused_after(3, text("Half", "."))
    asked = await harness.ask()
    async with harness.replica(ScriptedProvider([reply]), policy=AT_ONCE) as replica:
        replica.worker.wake()
        await pause.reached.wait()
    await Turns(harness.database).cancel(OWNER, asked.chat, asked.turn)
    turn, provider = await _taken_over(harness, asked, Client(), [])
    assert (turn.status, provider.requests) == ("cancelled", [])


# --- several at once -------------------------------------------------------------------------------------------------


async def test_a_turn_is_read_at_a_replica_that_does_not_run_it(harness: Harness) -> None:
    pause, reply = paused_after(3, text("Half a ", "sentence"))
    async with (
        harness.replica(ScriptedProvider([reply])) as here,
        harness.replica(ScriptedProvider([])) as there,
    ):
        asked = await harness.ask()
        here.worker.wake()
        await pause.reached.wait()
        client = Client()
        watching = asyncio.create_task(harness.follow(there, asked, client))
        while not client.blocks or client.blocks[0].text != "Half a ":  # noqa: ASYNC110, a client has no event for it
            await asyncio.sleep(0.001)
        pause.go.set()
        turn = await harness.finish(here, asked)
        (await watching).assert_holds(turn)


async def test_a_turn_is_cancelled_from_a_replica_that_does_not_run_it(harness: Harness) -> None:
    pause, reply = paused_after(3, text("Half", "."))
    async with (
        harness.replica(ScriptedProvider([reply]), listens=True) as here,
        harness.replica(ScriptedProvider([])) as there,
        harness.locker() as other,
    ):
        await _listens(other.connection, 1)
        asked = await harness.ask()
        here.worker.wake()
        await pause.reached.wait()
        await there.cancel(asked)
        turn = await harness.finish(here, asked)
    assert (turn.status, texts_of(turn)) == ("cancelled", ["Half"])


async def test_a_session_that_died_silently_does_not_keep_the_next_one_from_listening(harness: Harness) -> None:
    """Postgres may notice the death of a session only after hours, and keeps the session's lock until then."""
    received = asyncio.Event()
    sessions = [
        ReplicaSession(harness.url, 7, lambda _: None),
        ReplicaSession(harness.url, 7, lambda _: received.set()),
    ]
    async with harness.locker() as other:
        tasks = []
        for count, session in enumerate(sessions, 1):
            tasks.append(asyncio.create_task(session.run()))
            await asyncio.wait_for(_listens(other.connection, count), 10)
        await other.connection.execute("NOTIFY turnstream, 'ring'")
        await asyncio.wait_for(received.wait(), 10)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_frozen_replica_that_was_taken_over_wakes_up_and_does_no_harm(harness: Harness) -> None:
    pause, reply = paused_after(3, text("Half a ", "sentence"), tool_use("look", {}, "a"))
    async with (
        harness.replica(ScriptedProvider([reply]), [look]) as late,
        harness.replica(ScriptedProvider([answer("Anew.")]), [look]) as next_one,
    ):
        asked = await harness.ask(tools=[look], limits=RETRY)
        late.worker.wake()
        await pause.reached.wait()
        client = Client()
        watching = asyncio.create_task(harness.follow(late, asked, client))
        await next_one.queue.take_over([late.queue.replica])
        turn = await harness.finish(next_one, asked)
        rows = await rows_of(harness.database, asked)
        pause.go.set()
        await late.idle(asked)
        assert await rows_of(harness.database, asked) == rows
        (await watching).assert_holds(turn)
    assert texts_of(turn) == ["Anew."]


async def test_a_replica_that_was_taken_over_may_claim_its_own_turn_again(harness: Harness) -> None:
    pause, reply = paused_after(3, text("Half a ", "sentence"), text("More."))
    other = Pause()
    provider = ScriptedProvider([reply, [other, *answer("Other.")], answer("Anew.")])
    async with harness.replica(provider) as replica:
        asked = await harness.ask(limits=RETRY)  # the test does not depend on whether the text was stored by then
        replica.worker.wake()
        await pause.reached.wait()
        busy = await harness.ask()
        replica.worker.wake()
        await other.reached.wait()
        client = Client()
        watching = asyncio.create_task(harness.follow(replica, asked, client))
        await _requeue(replica, asked)
        turn = await harness.finish(replica, asked)
        (await watching).assert_holds(turn)
        pause.go.set()
        other.go.set()
        assert texts_of(await harness.finish(replica, busy)) == ["Other."], "the worker and its other turns live"
    assert (turn.status, texts_of(turn)) == ("complete", ["Anew."])


async def _requeue(replica: Replica, asked: Asked) -> None:
    async with replica.database.transaction() as connection:
        await connection.raw.execute("UPDATE turns SET status = 'queued', replica = NULL WHERE id = $1", asked.turn)


async def test_a_full_replica_notifies_others_and_full_replicas_do_not_notify_for_ever(harness: Harness) -> None:
    full = replace(POLICY, concurrent_turns=1)
    pause, reply = paused_after(0, text("Hello."))
    second = Pause()
    async with (
        harness.replica(ScriptedProvider([reply]), policy=full, listens=True) as here,
        harness.locker() as other,
    ):
        await _listens(other.connection, 1)
        payloads: list[str] = []
        received = asyncio.Event()

        def receive(*args: Any) -> None:
            payloads.append(args[-1])
            received.set()

        await other.connection.add_listener("turnstream", receive)
        first = await harness.ask()
        here.worker.wake()
        await pause.reached.wait()
        later = await harness.ask()
        here.worker.wake()
        await received.wait()
        async with harness.replica(ScriptedProvider([[second, *answer()]]), policy=full, listens=True) as there:
            await _listens(other.connection, 2)
            await second.reached.wait()
            payloads.clear()
            for number in range(20):
                await other.connection.execute(f"NOTIFY turnstream, '{QUEUED}'")
                while len(payloads) <= number:  # noqa: ASYNC110, the driver calls no coroutine
                    await asyncio.sleep(0.001)
            assert payloads == [QUEUED] * 20, "a notification that was received is not sent on"
            second.go.set()
            await harness.finish(there, later)
            pause.go.set()
            await harness.finish(here, first)


async def test_turns_beyond_the_room_of_a_replica_are_announced_to_others_at_once(harness: Harness) -> None:
    pause, reply = paused_after(0, text("Hello."))
    full = replace(POLICY, concurrent_turns=1)
    async with (
        harness.replica(ScriptedProvider([reply]), policy=full, listens=True) as here,
        harness.replica(ScriptedProvider([answer()]), listens=True) as there,
        harness.locker() as other,
    ):
        await _listens(other.connection, 2)
        first, second = await harness.ask(), await harness.ask()
        here.worker.wake()
        await asyncio.wait_for(harness.follow(there, second), 10)
        pause.go.set()
        await harness.finish(here, first)


async def _listens(connection: Any, count: int) -> None:
    """Waits until so many replicas have completed their LISTEN."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    listening = f"{sessions} AND query LIKE 'LISTEN%' AND state = 'idle'"
    while await connection.fetchval(listening) < count:  # noqa: ASYNC110, Postgres has no event for it
        await asyncio.sleep(0.002)


async def test_a_burst_is_shared_and_every_turn_is_run_once(harness: Harness) -> None:
    providers = [ScriptedProvider(lambda _: answer()) for _ in range(2)]
    async with harness.replica(providers[0]) as here, harness.replica(providers[1]) as there:
        asked = [await harness.ask() for _ in range(60)]
        turns = await asyncio.gather(*(harness.finish([here, there][n % 2], one) for n, one in enumerate(asked)))
    assert {turn.status for turn in turns} == {"complete"}
    assert {turn.attempt for turn in turns} == {1}
    assert sum(len(provider.requests) for provider in providers) == 60


REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION USING ERRCODE = 'XX001', MESSAGE = 'invalid page in block 7';
END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON turns FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL) EXECUTE FUNCTION refuse()
"""


async def test_a_turn_whose_end_postgres_refuses_is_run_again_until_it_is_taken(harness: Harness) -> None:
    provider = ScriptedProvider(lambda _: answer())
    async with (
        harness.replica(provider, policy=replace(POLICY, poll_interval=0.01)) as replica,
        harness.locker() as operator,
    ):
        await operator.connection.execute(REFUSE)  # before the turn, which may end at once
        asked = await harness.ask()
        replica.worker.wake()
        while asked.turn not in replica.worker._failed.turns():  # noqa: ASYNC110, nothing is notified of it
            await asyncio.sleep(0.01)
        await operator.connection.execute("DROP FUNCTION refuse CASCADE")
        turn = await harness.finish(replica, asked)
    assert (turn.status, texts_of(turn), len(provider.requests)) == ("complete", ["There."], 1)


@asynccontextmanager
async def _paused(harness: Harness) -> AsyncIterator[tuple[Replica, Asked, Locker]]:
    """Returns a turn whose run has failed. Its replica would repeat the run in five minutes, and that run would
    succeed.
    """
    provider = ScriptedProvider(lambda _: answer())
    async with (
        harness.replica(provider, policy=replace(POLICY, poll_interval=0.01)) as replica,
        harness.locker() as operator,
    ):
        replica.worker._failed = worker.FailedRuns(300.0)
        await operator.connection.execute(REFUSE)  # before the turn, which may end at once
        asked = await harness.ask()
        replica.worker.wake()
        while asked.turn not in replica.worker._failed.turns():  # noqa: ASYNC110, nothing is notified of it
            await asyncio.sleep(0.01)
        await operator.connection.execute("DROP FUNCTION refuse CASCADE")
        yield replica, asked, operator
        assert len(provider.requests) == 1


async def test_a_turn_that_is_cancelled_while_its_next_run_is_put_off_ends_at_once(harness: Harness) -> None:
    async with _paused(harness) as (replica, asked, _):
        await replica.cancel(asked)
        assert (await harness.finish(replica, asked)).status == "cancelled"


async def test_a_drain_hands_back_a_turn_whose_next_run_is_put_off(harness: Harness) -> None:
    async with _paused(harness) as (replica, asked, _):
        await replica.worker.drain()
        # The replica polls, so a claim may be in progress when the drain begins. The replica returns that claim a
        # moment later.
        policy = replace(POLICY, poll_interval=0.01)
        async with harness.replica(ScriptedProvider([answer()]), policy=policy) as other:
            turn = await harness.finish(other, asked)
            assert (turn.status, turn.recoveries) == ("complete", 0)


async def test_a_draining_replica_later_returns_turns_that_it_owns_without_running_them(harness: Harness) -> None:
    """Simulates that the answer to the last claim was lost."""
    async with _paused(harness) as (replica, asked, operator):
        await replica.worker.drain()
        await operator.connection.execute(
            "UPDATE turns SET status = 'running', replica = $2 WHERE id = $1", asked.turn, replica.queue.replica
        )
        await _is_queued(operator, asked)


async def test_a_turn_whose_next_run_is_put_off_does_not_keep_its_owner_in_the_cell(harness: Harness) -> None:
    async with _paused(harness) as (_, asked, operator):
        hold = (
            "INSERT INTO moves (owner, cell, state, held_until) VALUES ($1, '08', 'leaving', now() + interval '1 hour')"
        )
        await operator.connection.execute(hold, OWNER)
        await _is_queued(operator, asked)


async def _is_queued(operator: Locker, asked: Asked) -> None:
    status = "SELECT status FROM turns WHERE id = $1 AND replica IS NULL"
    while await operator.connection.fetchval(status, asked.turn) != "queued":  # noqa: ASYNC110, likewise
        await asyncio.sleep(0.01)
