"""The writes of a run: each may be repeated after its answer was lost, and none succeeds after the claim is lost."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tests.integration.records import begun, claimed, first_round, records_of, sealed
from tests.support.harness import OWNER, POLICY, Asked, Harness, results_of, rows_of
from turnstream.domain.asks import Ask, AskAnswer, Steer
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ClaimLost, StorageUnavailable
from turnstream.domain.kinds import TEXT, TOOL_RESULT, TOOL_USE, USER_TEXT
from turnstream.domain.steps import VOIDED
from turnstream.domain.turns import Turn, TurnError, TurnRequest
from turnstream.engine.tool_gate import OUTCOME_UNKNOWN
from turnstream.kit.ids import new_id
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.actions import Actions, Decision
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.rows import to_json
from turnstream.storage.runs.queue import CLAIM_TURNS, Queue
from turnstream.storage.runs.record import (
    CLOSE_BLOCKS,
    SEAL_AND_END,
    SEAL_ROUND,
    SETTLE_CALLS,
    NewJob,
    Records,
    SettledCall,
)
from turnstream.tools.tool import ToolContext, tool

CALL = Block(0, 1, 1, TOOL_USE, "{}", '{"type":"tool_use"}', "call_1", "note")
RESULT = Block(2, 1, 1, TOOL_RESULT, "done", tool_use_id="call_1", name="note")
ASKED = Ask(1, "call_1", "note", "approval", "0" * 64, 1)
SAID = (Block(0, 0, 0, TEXT, "Faster"),)
SPOKEN = Steer(new_id(), SAID, to_json(SAID))
WORDS = Block(3, 1, 1, USER_TEXT, "Faster", notes='{"steer":"1"}')
CUT = Block(1, 1, 1, TEXT, "And so", interrupted=True)
ROUND = first_round()
DONE = SettledCall(RESULT, "settled", "all that was done")
TOTAL = {"input_tokens": 3}
JOB = NewJob(new_id(), CALL, "tool", "{}", datetime(2026, 1, 1, tzinfo=UTC))

Write = Callable[[Records, Turn], Awaitable[object]]

# The writes in the order of a run. Writes that void or release the run are tested separately.
RUN: Sequence[tuple[str, Write]] = (
    ("close_blocks", lambda records, _: records.close_blocks([CALL], [ROUND])),
    ("seal_round", lambda records, turn: records.seal_round(sealed(ROUND), [CUT], replace(turn, usage=TOTAL))),
    ("ask", lambda records, _: records.ask([ASKED], 1)),
    ("start_calls", lambda records, _: records.start_calls([CALL])),
    ("start_jobs", lambda records, _: records.start_jobs([JOB], 2)),
    ("settle_calls", lambda records, _: records.settle_calls([DONE])),
    ("apply_steers", lambda records, _: records.apply_steers([WORDS], [SPOKEN])),
    ("end", lambda records, turn: records.end(replace(turn, status="complete", stop_reason="end_turn", usage=TOTAL))),
)
WAYS_OUT: Sequence[tuple[str, Write]] = (
    (
        "seal_and_end",
        lambda records, turn: records.seal_and_end(
            sealed(ROUND), [replace(CUT, index=0)], replace(turn, status="complete", stop_reason="end", usage=TOTAL)
        ),
    ),
    (
        "void_round",
        lambda records, turn: records.void_round(
            replace(ROUND, stop_reason=VOIDED), replace(turn, usage=TOTAL, recoveries=1)
        ),
    ),
    ("release", lambda records, _: records.release(replace(CUT, index=0), [ROUND])),
    ("wait", lambda records, turn: records.wait(turn.arrivals)),
)
PEOPLE = (
    Statement("SELECT to_jsonb(asks) - 'asked_at' AS row FROM asks WHERE turn_id = :turn"),
    Statement("SELECT id, blocks::text, taken_at IS NULL AS waits FROM steers WHERE turn_id = :turn ORDER BY id"),
)
SAY = Statement("INSERT INTO steers (id, turn_id, blocks) VALUES (:steer, :turn, CAST(:blocks AS json)) RETURNING id")


async def _rows(harness: Harness, asked: Asked) -> str:
    """Returns the rows without the times at which a call began and was settled."""
    turns, rounds, blocks, calls = await rows_of(harness.database, asked)
    people = [list(map(tuple, await harness.database.rows(table, turn=asked.turn))) for table in PEOPLE]
    known = re.sub(r'"2\d{3}-[^"]*"', "now", f"{turns} {rounds} {blocks} {people}")
    return known + re.sub(r'\\?"2\d{3}-[^"]*"', "", str(calls))


async def test_every_write_of_a_run_may_be_written_twice(harness: Harness) -> None:
    asked = await harness.ask()
    turn = await claimed(harness, asked)
    records = await records_of(harness, turn)
    await harness.database.row(SAY, steer=SPOKEN.id, turn=turn.id, blocks=to_json(SPOKEN.blocks))
    for name, write in RUN:
        before = await _rows(harness, asked)
        await write(records, turn)
        once = await _rows(harness, asked)
        await write(records, turn)
        assert await _rows(harness, asked) == once, name
        assert once != before, name


@pytest.mark.parametrize(("name", "write"), WAYS_OUT)
async def test_every_way_out_of_a_run_may_be_written_twice(harness: Harness, name: str, write: Write) -> None:
    asked = await harness.ask()
    turn = await begun(harness, asked)
    first, again = await records_of(harness, turn), await records_of(harness, turn)
    await write(first, turn)
    once = await _rows(harness, asked)
    await write(again, turn)
    assert await _rows(harness, asked) == once
    assert (await harness.turn(asked)).attempt == (2 if name == "void_round" else 1)


@pytest.mark.parametrize("taken_by", ["nobody yet", "another", "itself"])
async def test_no_write_is_made_under_a_claim_that_is_lost(harness: Harness, taken_by: str) -> None:
    asked = await harness.ask()
    turn = await begun(harness, asked)
    row = await harness.database.row(Statement("SELECT replica FROM turns WHERE id = :turn"), turn=turn.id)
    assert row is not None
    await Queue(harness.database, new_id(), "elsewhere", 1).take_over([])
    if taken_by != "nobody yet":
        replica = row["replica"] if taken_by == "itself" else new_id()
        await Queue(harness.database, replica, "elsewhere", 1).claim(1)
    before = await _rows(harness, asked)
    for name, write in (*RUN, *WAYS_OUT):
        if name in {"release", "wait"} and taken_by == "nobody yet":
            continue  # the turn is already in the queue, as a release wants, and it may also wait
        with pytest.raises(ClaimLost):
            await write(Records(harness.database, row["replica"], lambda: turn), turn)
    assert await _rows(harness, asked) == before


# --- what arrives meanwhile ------------------------------------------------------------------------------------------

ARRIVED = Statement("UPDATE turns SET arrivals = arrivals + 1 WHERE id = :turn RETURNING id")
STOPPED = Statement("UPDATE turns SET cancel_requested = true WHERE id = :turn RETURNING id")


@pytest.mark.parametrize(("meanwhile", "status"), [(None, "waiting"), (ARRIVED, "queued"), (STOPPED, "queued")])
async def test_a_turn_waits_only_where_nothing_has_come_that_it_does_not_know_of(
    harness: Harness, meanwhile: Statement | None, status: str
) -> None:
    asked = await harness.ask()
    turn = await claimed(harness, asked)
    if meanwhile is not None:
        await harness.database.row(meanwhile, turn=turn.id)
    assert await (await records_of(harness, turn)).wait(turn.arrivals) == status
    left = await harness.turn(asked)
    assert (left.status, left.attempt) == (status, 1)
    taken = await Queue(harness.database, new_id(), "elsewhere", 1).claim(1)
    assert taken == ([asked.turn] if status == "queued" else [])


async def test_a_turn_with_an_unread_arrival_goes_back_into_the_queue_at_its_end(harness: Harness) -> None:
    asked = await harness.ask()
    turn = await claimed(harness, asked)
    records = await records_of(harness, turn)
    await harness.database.row(ARRIVED, turn=turn.id)
    error = TurnError("api_error", "No.")
    assert await records.end(replace(turn, status="error", stop_reason="error", error=error, usage=TOTAL)) == (
        None,
        False,
    )
    left = await harness.turn(asked)
    assert (left.status, left.stop_reason, left.error, left.ended_at) == ("queued", None, None, None)
    assert left.usage == TOTAL, "what was used is known all the same"
    known = await claimed(harness, asked)
    ended_at, _ = await (await records_of(harness, known)).end(
        replace(known, status="complete", stop_reason="end_turn")
    )
    assert ended_at is not None


async def test_an_end_reports_whether_another_turn_is_queued_behind(harness: Harness) -> None:
    asked = await harness.ask()
    turn = await claimed(harness, asked)
    exchanges = Exchanges(harness.database)
    async with exchanges.after(Target(OWNER, asked.chat, on_busy="enqueue"), None) as draft:
        await draft.create([Block(0, 0, 0, TEXT, "And?")], TurnRequest("scripted"), None)
    records = await records_of(harness, turn)
    assert (await records.end(replace(turn, status="complete", stop_reason="end_turn")))[1]


async def test_arrivals_are_read_with_their_count(harness: Harness) -> None:
    asked = await harness.ask()
    turn = await begun(harness, asked)
    records = await records_of(harness, turn)
    await records.ask([ASKED], 1)
    await harness.database.row(SAY, steer=SPOKEN.id, turn=turn.id, blocks=to_json(SPOKEN.blocks))
    await harness.database.row(ARRIVED, turn=turn.id)
    arrived = await Turns(harness.database).refreshed(turn)
    assert (arrived.arrivals, arrived.asks, arrived.steers) == (1, (ASKED,), (SPOKEN,))
    await records.apply_steers([replace(WORDS, index=0)], [SPOKEN])
    assert (await Turns(harness.database).refreshed(turn)).steers == ()


async def test_an_ask_that_was_answered_is_not_asked_again_by_a_write_whose_answer_was_lost(harness: Harness) -> None:
    asked = await harness.ask()
    turn = await begun(harness, asked)
    records = await records_of(harness, turn)
    await records.ask([ASKED], 1)
    decision = Decision(ASKED.tool_use_id, ASKED.digest, AskAnswer("approve"), "actions")
    await Actions(harness.database).answer(OWNER, asked.chat, asked.turn, [decision], None)
    await records.ask([ASKED], 1)
    assert (await harness.turn(asked)).asks == (replace(ASKED, answer=AskAnswer("approve")),)


# --- whole runs ------------------------------------------------------------------------------------------------------


async def test_a_run_whose_every_write_loses_its_first_answer_does_everything_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    @tool()
    async def note(context: ToolContext) -> str:
        """Takes effect."""
        done.append(context.idempotency_key)
        return "done"

    writes = {CLOSE_BLOCKS, SEAL_ROUND, SETTLE_CALLS, SEAL_AND_END}
    row = Database.row
    lost: list[tuple[str, str]] = []

    async def lose_the_answer(database: Database, statement: Statement, **values: Any) -> Row | None:
        found = await row(database, statement, **values)
        if statement in writes and (what := (statement.sql, str(values))) not in lost:
            lost.append(what)
            raise StorageUnavailable("the connection was lost")
        return found

    monkeypatch.setattr(Database, "row", lose_the_answer)
    provider = ScriptedProvider([message_of(tool_use("note", {}, "call_1")), message_of(text("Noted."))])
    async with harness.replica(provider, [note]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[note]))
    assert (turn.status, turn.attempt, len(done), len(provider.requests)) == ("complete", 1, 1, 2)
    assert len(lost) == 4


async def test_a_claim_whose_answer_was_lost_is_found_and_run(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Database.rows
    lost: list[Sequence[Row]] = []

    async def lose_the_answer(database: Database, statement: Statement, **values: Any) -> Sequence[Row]:
        found = await rows(database, statement, **values)
        if statement is CLAIM_TURNS and found and not lost:
            lost.append(found)
            raise StorageUnavailable("the connection was lost")
        return found

    monkeypatch.setattr(Database, "rows", lose_the_answer)
    policy = replace(POLICY, poll_interval=0.01)
    async with harness.replica(ScriptedProvider([message_of(text("Hi."))]), policy=policy) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert (turn.status, turn.attempt, len(lost)) == ("complete", 2, 1)


async def test_a_claim_that_somebody_else_made_meanwhile_is_not_run(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica is delayed between its claim and its first read of the turn."""
    look, looks, goes_on = Turns.claimed, asyncio.Event(), asyncio.Event()

    async def look_late(turns: Turns, turn: UUID, replica: UUID) -> tuple[str, list[Turn]]:
        looks.set()
        await goes_on.wait()
        return await look(turns, turn, replica)

    monkeypatch.setattr(Turns, "claimed", look_late)
    provider = ScriptedProvider([])
    async with harness.replica(provider) as replica, harness.locker() as locker:
        asked = await harness.ask()
        replica.worker.wake()
        await looks.wait()
        (run,) = replica.worker._runs.values()
        await locker.connection.execute(
            "UPDATE turns SET attempt = attempt + 1, replica = $2 WHERE id = $1", asked.turn, new_id()
        )
        goes_on.set()
        await run.task
    assert provider.requests == []
    assert (await harness.turn(asked)).attempt == 2


async def test_a_call_that_was_started_is_not_started_again_by_a_run_of_a_turn_that_nobody_runs(
    harness: Harness,
) -> None:
    @tool()
    async def note() -> str:
        """Must never be run twice."""
        raise AssertionError("it was")

    asked = await harness.ask(tools=[note])
    other = Queue(harness.database, new_id(), "nowhere", 1)
    await other.renew_lease(60)  # so that no other replica takes the turn over before the replica below does
    turn = await begun(harness, asked, other.replica)
    records = await records_of(harness, turn)
    await records.close_blocks([CALL])
    await records.seal_round(sealed(ROUND), [], turn)
    await records.start_calls([CALL])
    policy = replace(POLICY, poll_interval=0.01)
    async with harness.replica(ScriptedProvider([message_of(text("Oh."))]), [note], policy=policy) as replica:
        take = Statement("UPDATE turns SET status = 'running', replica = :replica WHERE id = :turn RETURNING id")
        await harness.database.row(take, turn=asked.turn, replica=replica.queue.replica)
        ended = await harness.finish(replica, asked)
    assert results_of(ended)["call_1"].text == OUTCOME_UNKNOWN


async def test_an_owner_that_has_nothing_to_write_finds_out_too_that_its_claim_is_lost(harness: Harness) -> None:
    pause = Pause()
    policy = replace(POLICY, poll_interval=0.01)
    async with harness.replica(ScriptedProvider([[pause]]), policy=policy) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        take = Statement("UPDATE turns SET attempt = attempt + 1, replica = :replica WHERE id = :turn RETURNING id")
        await harness.database.row(take, turn=asked.turn, replica=new_id())
        await replica.idle(asked)
    turn = await harness.turn(asked)
    assert (turn.status, turn.attempt) == ("running", 2)


async def test_a_word_to_stop_that_was_not_heard_is_found_however_often_the_bell_rings(harness: Harness) -> None:
    pause = Pause()
    policy = replace(POLICY, poll_interval=0.05)
    async with harness.replica(ScriptedProvider([[pause]]), policy=policy) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        await Turns(harness.database).cancel(OWNER, asked.chat, asked.turn)
        while replica.directory.running(asked.turn):
            replica.worker.wake()
            await harness.database.row(Statement("SELECT 1"))
    assert (await harness.turn(asked)).status == "cancelled"
