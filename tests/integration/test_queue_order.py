"""Turns that are queued behind each other: the order of claims, and the end of cancelled or skipped turns."""

import asyncio
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tests.integration.records import records_of
from tests.support.harness import OWNER, Asked, Harness, Replica, texts_of
from turnstream.domain.blocks import Block
from turnstream.domain.chats import OnBusy
from turnstream.domain.errors import Conflict
from turnstream.domain.kinds import TEXT
from turnstream.domain.turns import Status, Turn, TurnError, TurnRequest
from turnstream.extensions.queue.rows import Behind, Change, QueuedMessages
from turnstream.kit.clock import DatabaseClock
from turnstream.kit.ids import new_id
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text
from turnstream.storage.chats.chats import LOCK_CHAT
from turnstream.storage.chats.exchanges import Draft, Exchanges, Target
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Row, Statement, Transaction, connect
from turnstream.storage.runs import queue
from turnstream.storage.runs.queue import Queue


async def say(harness: Harness, chat: Asked, words: str, on_busy: OnBusy) -> tuple[Asked, Draft]:
    """Posts a message to a chat with an open turn, as the API does."""
    blocks = [Block(0, 0, 0, TEXT, words)]
    async with Exchanges(harness.database).after(Target(OWNER, chat.chat, on_busy=on_busy), None) as draft:
        if draft.steered is not None:
            await draft.steer(blocks)
            return Asked(chat.chat, draft.steered.id), draft
        exchange = await draft.create(blocks, TurnRequest("scripted"), None)
        return Asked(chat.chat, exchange.assistant_turn.id), draft


async def enqueue(harness: Harness, chat: Asked, words: str = "And?") -> Asked:
    asked, _ = await say(harness, chat, words, "enqueue")
    return asked


def queue_of(harness: Harness) -> Queue:
    return Queue(harness.database, new_id(), "nowhere", 1)


async def become(harness: Harness, asked: Asked, status: Status) -> Turn:
    """Gives the turn this status, on any replica."""
    assert (await queue_of(harness).claim(1)) == [asked.turn]
    turn = await harness.turn(asked)
    records = await records_of(harness, turn)
    match status:
        case "running":
            pass
        case "queued":
            await records.release(None)
        case "waiting":
            await records.wait(turn.arrivals)
        case _:
            error = TurnError("api_error", "No.") if status == "error" else None
            await records.end(replace(turn, status=status, stop_reason="end_turn", error=error))
    return await harness.turn(asked)


async def cancel(harness: Harness, asked: Asked) -> Turn:
    return await Turns(harness.database).cancel(OWNER, asked.chat, asked.turn)


def words_to(request: ModelRequest) -> list[str]:
    return [block.text for message in request.messages if message.role == "user" for block in message.blocks]


def answering(pauses: dict[str, Pause]) -> ScriptedProvider:
    """Answers "Yes, …" to the last message, after the pause for that message, if it has one."""

    def reply(request: ModelRequest) -> Reply:
        words = words_to(request)[-1]
        start, *rest = message_of(text("Yes, ", f"{words}"))
        return [start, *([pauses[words]] if words in pauses else []), *rest]

    return ScriptedProvider(reply)


# --- claims ----------------------------------------------------------------------------------------------------------


async def test_the_oldest_turns_are_claimed_first(harness: Harness) -> None:
    asked = [await harness.ask() for _ in range(3)]
    queue = queue_of(harness)
    assert await queue.claim(2) == [one.turn for one in asked[:2]]
    assert await queue.claim(2) == [asked[2].turn]
    assert await queue.claim(2) == []


@pytest.mark.parametrize("status", ["queued", "running", "waiting"])
async def test_a_turn_is_not_claimed_while_the_one_before_it_is_open(harness: Harness, status: Status) -> None:
    first = await harness.ask()
    behind = await enqueue(harness, first)
    assert (await become(harness, first, status)).status == status
    claimed = await queue_of(harness).claim(10)
    assert behind.turn not in claimed
    assert claimed == ([first.turn] if status == "queued" else [])


@pytest.mark.parametrize("status", ["complete", "cancelled", "error"])
async def test_a_turn_is_claimed_once_the_one_before_it_has_ended_however_it_did(
    harness: Harness, status: Status
) -> None:
    first = await harness.ask()
    behind = await enqueue(harness, first)
    await become(harness, first, status)
    assert await queue_of(harness).claim(10) == [behind.turn]


async def test_turns_that_were_enqueued_run_one_after_another_without_being_rung_for(harness: Harness) -> None:
    pause = Pause()
    provider = answering({"first": pause})
    async with harness.replica(provider) as replica:
        asked = [await harness.ask("first")]
        replica.worker.wake()
        await pause.reached.wait()
        for words in ("second", "third"):
            asked.append(await enqueue(harness, asked[0], words))
        pause.go.set()
        await follow_to_the_end(harness, replica, asked)
    assert [words_to(request) for request in provider.requests] == [
        ["first"],
        ["first", "second"],
        ["first", "second", "third"],
    ]
    assert texts_of(await harness.turn(asked[-1])) == ["Yes, third"]


async def follow_to_the_end(harness: Harness, replica: Replica, asked: Sequence[Asked]) -> None:
    """Follows the turns without notifications. One reader for each turn assembles the whole turn."""
    for one in asked:
        client = await harness.follow(replica, one)
        await replica.idle(one)
        client.assert_holds(await harness.turn(one))


async def test_simultaneous_messages_are_queued_one_behind_another(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first message is delayed before it locks the chat."""
    pause, row = Pause(), Transaction.row

    async def hold_up_the_first(connection: Transaction, statement: Statement, **values: Any) -> Row | None:
        if statement is LOCK_CHAT and not pause.reached.is_set():
            pause.reached.set()
            await pause.go.wait()
        return await row(connection, statement, **values)

    monkeypatch.setattr(Transaction, "row", hold_up_the_first)
    first = await harness.ask("first")
    third = asyncio.create_task(enqueue(harness, first, "third"))
    await pause.reached.wait()
    await enqueue(harness, first, "second")
    pause.go.set()
    await third
    last = await enqueue(harness, first, "fourth")
    assert await Turns(harness.database).newest(OWNER, first.chat) == last.turn
    path = await Turns(harness.database).path(OWNER, first.chat, last.turn)
    said = [block.text for turn in path if turn.role == "user" for block in turn.blocks]
    assert said == ["first", "second", "third", "fourth"]


async def test_of_two_simultaneous_messages_one_is_queued_behind_the_other(harness: Harness) -> None:
    first = await harness.ask("first")
    async with harness.locker() as locker:
        async with locker.holding("SELECT FROM chats WHERE id = $1 FOR UPDATE", first.chat):
            both = [asyncio.create_task(enqueue(harness, first, words)) for words in ("one", "other")]
            await locker.waiting(2)
        behind = await asyncio.gather(*both)
    turns = [await harness.turn(asked) for asked in (first, *behind)]
    newest = await Turns(harness.database).newest(OWNER, first.chat)
    path = await Turns(harness.database).path(OWNER, first.chat, newest or first.turn)
    assert {turn.id for turn in path} >= {turn.id for turn in turns}


# --- cancelled while they stand in line ------------------------------------------------------------------------------


async def test_a_turn_that_is_cancelled_behind_a_running_one_ends_after_it_and_the_next_one_runs(
    harness: Harness,
) -> None:
    pause = Pause()
    provider = answering({"first": pause})
    async with harness.replica(provider) as replica:
        first = await harness.ask("first")
        replica.worker.wake()
        await pause.reached.wait()
        second = await enqueue(harness, first, "second")
        third = await enqueue(harness, first, "third")
        held = await replica.cancel(second)
        assert (held.status, held.cancel_requested, held.ended_at) == ("queued", True, None)
        pause.go.set()
        await follow_to_the_end(harness, replica, [first, second, third])
    ended = [await harness.turn(one) for one in (first, second, third)]
    assert [turn.status for turn in ended] == ["complete", "cancelled", "complete"]
    times = [turn.ended_at for turn in ended if turn.ended_at]
    assert times == sorted(times)
    assert [words_to(request)[-1] for request in provider.requests] == ["first", "third"], "the model hears nothing"


async def test_a_turn_that_never_ran_and_is_first_in_line_is_cancelled_at_once(harness: Harness) -> None:
    first = await harness.ask()
    behind = await enqueue(harness, first)
    assert (await cancel(harness, behind)).status == "queued"
    assert (await cancel(harness, first)).status == "cancelled"
    last = await enqueue(harness, first)
    assert (await cancel(harness, last)).status == "queued", "the one before it has still to end"


async def test_words_to_a_turn_that_is_cancelled_before_it_ever_ran_stay_in_it(harness: Harness) -> None:
    first = await harness.ask("first")
    assert (await say(harness, first, "and briefly", "steer"))[0] == first
    assert (await cancel(harness, first)).status == "queued", "somebody must take the words in"
    provider = answering({})
    async with harness.replica(provider) as replica:
        replica.worker.wake()
        await follow_to_the_end(harness, replica, [first])
    turn = await harness.turn(first)
    assert (turn.status, provider.requests) == ("cancelled", [])
    assert [(block.type, block.round, block.text) for block in turn.blocks] == [("user_text", 0, "and briefly")]


# --- interrupt, branch, steer ----------------------------------------------------------------------------------------


async def test_an_interruption_stops_everything_that_is_open_on_the_branch_and_runs_after_it(harness: Harness) -> None:
    pause = Pause()
    provider = answering({"first": pause})
    async with harness.replica(provider) as replica:
        first = await harness.ask("first")
        replica.worker.wake()
        await pause.reached.wait()
        second = await enqueue(harness, first, "second")
        third, draft = await say(harness, first, "third", "interrupt")
        assert draft.interrupted == (first.turn, second.turn)
        assert not await queue_of(harness).claim(10), "it waits until they have stopped"
        for turn in draft.interrupted:
            await replica.worker.cancel(turn)
        await follow_to_the_end(harness, replica, [first, second, third])
    ended = [await harness.turn(one) for one in (first, second, third)]
    assert [turn.status for turn in ended] == ["cancelled", "cancelled", "complete"]
    assert [words_to(request) for request in provider.requests] == [["first"], ["first", "second", "third"]]


async def test_a_turn_that_waits_for_a_person_is_interrupted_too(harness: Harness) -> None:
    first = await harness.ask()
    await become(harness, first, "waiting")
    _, draft = await say(harness, first, "second", "interrupt")
    turn = await harness.turn(first)
    assert (draft.interrupted, turn.status, turn.cancel_requested) == ((first.turn,), "queued", True)


async def test_a_branch_is_a_sibling_of_the_oldest_open_turn(harness: Harness) -> None:
    done = await harness.ask("done")
    async with harness.replica(answering({})) as replica:
        await harness.finish(replica, done)
    first = await enqueue(harness, done, "first")
    await enqueue(harness, done, "second")
    branch, draft = await say(harness, done, "other", "branch")
    assert draft.before is not None
    assert draft.before.id == done.turn
    path = await Turns(harness.database).path(OWNER, done.chat, branch.turn)
    assert [block.text for turn in path if turn.role == "user" for block in turn.blocks] == ["done", "other"]
    assert set(await queue_of(harness).claim(10)) == {first.turn, branch.turn}, "both may run at once"


async def test_a_branch_of_a_chat_whose_first_turn_is_open_is_a_new_root(harness: Harness) -> None:
    first = await harness.ask("first")
    branch, draft = await say(harness, first, "other", "branch")
    assert draft.before is None
    path = await Turns(harness.database).path(OWNER, first.chat, branch.turn)
    assert [block.text for turn in path if turn.role == "user" for block in turn.blocks] == ["other"]


async def test_words_go_into_the_oldest_open_turn_that_is_not_about_to_stop(harness: Harness) -> None:
    first = await harness.ask("first")
    second = await enqueue(harness, first, "second")
    assert (await say(harness, first, "to the first", "steer"))[0] == first
    await queue_of(harness).claim(1)
    await cancel(harness, first)
    assert (await say(harness, first, "to the second", "steer"))[0] == second
    await cancel(harness, second)
    behind, draft = await say(harness, first, "to nobody", "steer")
    assert draft.steered is None
    assert behind not in (first, second), "where nobody can be spoken to, the words stand behind"
    turns = [await Turns(harness.database).refreshed(await harness.turn(asked)) for asked in (first, second)]
    steers = [[steer.blocks[0].text for steer in turn.steers] for turn in turns]
    assert steers == [["to the first"], ["to the second"]]


@pytest.mark.parametrize(("status", "reason"), [("running", "is still running"), ("waiting", "waits for an action")])
async def test_words_are_refused_where_a_branch_is_busy_and_nothing_else_was_wished(
    harness: Harness, status: Status, reason: str
) -> None:
    first = await harness.ask()
    await become(harness, first, status)
    with pytest.raises(Conflict, match=reason):
        await say(harness, first, "second", "reject")
    assert (await harness.turn(first)).status == status


@pytest.mark.parametrize("on_busy", ["reject", "enqueue", "interrupt", "steer", "branch"])
async def test_without_an_open_turn_all_values_of_on_busy_are_equal(harness: Harness, on_busy: OnBusy) -> None:
    done = await harness.ask("done")
    async with harness.replica(answering({})) as replica:
        await harness.finish(replica, done)
        asked, draft = await say(harness, done, "next", on_busy)
        turn = await harness.finish(replica, asked)
    assert draft.before is not None
    assert (draft.before.id, draft.steered, draft.interrupted) == (done.turn, None, ())
    assert texts_of(turn) == ["Yes, next"]


async def test_a_turn_that_went_back_into_the_queue_at_its_end_keeps_its_place(harness: Harness) -> None:
    first = await harness.ask()
    behind = await enqueue(harness, first)
    queue = queue_of(harness)
    assert await queue.claim(10) == [first.turn]
    running = await harness.turn(first)
    await say(harness, first, "one more thing", "steer")
    records = await records_of(harness, running)
    assert (await records.end(running))[0] is None
    assert (await harness.turn(first)).status == "queued"
    assert await queue.claim(10) == [first.turn]
    assert (await harness.turn(behind)).status == "queued"


async def test_an_end_meets_a_message_that_is_enqueued_while_it_is_written(harness: Harness) -> None:
    """Otherwise neither would wake the worker: the message's claim finds the turn open, and the end finds no
    message.
    """
    asked = await harness.ask()
    turn = await become(harness, asked, "running")
    records = await records_of(harness, turn)
    ended = replace(turn, status="complete", stop_reason="end_turn")
    async with harness.locker() as locker:
        place = Target(OWNER, asked.chat, on_busy="enqueue")
        async with Exchanges(harness.database).after(place, None) as draft:
            ending = asyncio.create_task(records.end(ended))
            await locker.waiting()  # the claim has its snapshot
            await draft.create([Block(0, 0, 0, TEXT, "And?")], TurnRequest("scripted"), None)
        _, followed = await ending
    assert followed


async def test_an_end_without_a_message_behind_it_wakes_nobody(harness: Harness) -> None:
    asked = await harness.ask()
    turn = await become(harness, asked, "running")
    _, followed = await (await records_of(harness, turn)).end(replace(turn, status="complete", stop_reason="end_turn"))
    assert not followed


async def test_a_look_at_other_replicas_shows_that_the_clock_of_postgres_was_set(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(database_url, size=1) as database:
        clock = DatabaseClock()
        monkeypatch.setattr(queue, "CLOCK", clock)
        for number in (1, 2):
            await Queue(database, UUID(int=number), f"address {number}", number).renew_lease(10)
        ahead = clock.ahead
        clock._ahead -= 3600
        assert await Queue(database, UUID(int=1), "address 1", 1).peers()
        assert clock.ahead == pytest.approx(ahead, abs=60)


async def test_a_turn_that_moves_behind_an_open_one_during_a_claim_is_not_claimed(harness: Harness) -> None:
    """The claim takes its snapshot before the move, and locks the row after the move."""
    first = await harness.ask()
    second = await enqueue(harness, first, "Second")
    third = await enqueue(harness, first, "Third")
    await become(harness, first, "complete")
    waits = "WITH gate AS MATERIALIZED (SELECT pg_advisory_xact_lock(52)), "
    for statement in (queue.CLAIM_TURNS, queue.CLAIM_TURNS_FAIRLY):
        gated = copy(statement)
        gated.sql = (
            statement.sql.strip()
            .replace("WITH ", waits, 1)
            .replace("FROM turns AS next WHERE", "FROM turns AS next WHERE EXISTS (SELECT FROM gate) AND")
        )
        claim = {"replica": new_id(), "step": 1, "limit": 5, "suspects": 0}
        if statement is queue.CLAIM_TURNS_FAIRLY:
            claim["most"] = 5
        messages = QueuedMessages(harness.database, harness.database)
        entries = await messages.of_chat(OWNER, first.chat)
        async with harness.locker() as locker, locker.holding("SELECT pg_advisory_xact_lock(52)"):
            claiming = asyncio.create_task(harness.database.rows(gated, **claim))
            await locker.waiting()
            change = Change(entries[1].version, lambda turn: None, place=Behind(None))
            await messages.change(OWNER, first.chat, entries[1].id, change)
        assert await claiming == []
        assert [entry.turn for entry in await messages.of_chat(OWNER, first.chat)] == [entries[1].turn, entries[0].turn]
    assert await queue_of(harness).claim(5) == [second.turn]
    assert (await harness.turn(third)).status == "queued"
