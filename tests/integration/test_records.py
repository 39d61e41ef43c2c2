"""The writes of a run: each may be written again when its answer was lost, and none under a claim that is lost."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.domain.blocks import TEXT, TOOL_RESULT, TOOL_USE, Block
from app.domain.errors import ClaimLost, StorageUnavailable
from app.domain.ids import new_id
from app.domain.turns import Turn
from app.engine.calls import OUTCOME_UNKNOWN
from app.llm.scripted import Pause, ScriptedProvider, message_of, text, tool_use
from app.storage.database import Database, Row, Statement
from app.storage.queue import CLAIM_TURNS, Queue
from app.storage.record import BEGIN_ROUND, CLOSE_BLOCK, END_TURN, SEAL_ROUND, SETTLE_CALL, START_CALLS, Records
from app.storage.turns import Turns
from app.tools.tool import ToolContext, tool
from tests.integration.harness import OWNER, POLICY, Asked, Harness, results_of, rows_of
from tests.integration.records import begun, claimed, first_round, records_of, sealed

CALL = Block(0, 1, 1, TOOL_USE, "{}", '{"type":"tool_use"}', "call_1", "note")
RESULT = Block(2, 1, 1, TOOL_RESULT, "done", tool_use_id="call_1", name="note")
CUT = Block(1, 1, 1, TEXT, "And so", interrupted=True)
ROUND = first_round()
TOTAL = {"input_tokens": 3}

Write = Callable[[Records, Turn], Awaitable[object]]

# In the order of a run. A run that voids or releases is another one.
RUN: Sequence[tuple[str, Write]] = (
    ("begin_round", lambda records, _: records.begin_round(ROUND)),
    ("close_block", lambda records, _: records.close_block(CALL)),
    ("seal_round", lambda records, turn: records.seal_round(sealed(ROUND), [CUT], replace(turn, usage=TOTAL))),
    ("start_calls", lambda records, _: records.start_calls([CALL])),
    ("settle_call", lambda records, _: records.settle_call(RESULT, "settled")),
    ("end", lambda records, turn: records.end(replace(turn, status="complete", stop_reason="end_turn", usage=TOTAL))),
)
WAYS_OUT: Sequence[tuple[str, Write]] = (
    ("void_round", lambda records, turn: records.void_round(ROUND, replace(turn, usage=TOTAL, recoveries=1))),
    ("release", lambda records, _: records.release(replace(CUT, index=0))),
)


async def _rows(harness: Harness, asked: Asked) -> str:
    """But for when a call began and settled."""
    turns, rounds, blocks, calls = await rows_of(harness.database, asked)
    return re.sub(r'"2\d{3}-[^"]*"', "now", f"{turns} {rounds} {blocks}") + re.sub(r'\\?"2\d{3}-[^"]*"', "", str(calls))


async def test_every_write_of_a_run_may_be_written_twice(harness: Harness) -> None:
    asked = await harness.ask()
    turn = await claimed(harness, asked)
    records = await records_of(harness, turn)
    for name, write in RUN:
        await write(records, turn)
        once = await _rows(harness, asked)
        await write(records, turn)
        assert await _rows(harness, asked) == once, name


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
        if (name, taken_by) == ("release", "nobody yet"):
            continue  # it is in the queue already, which is all that a release wants
        with pytest.raises(ClaimLost):
            await write(Records(harness.database, row["replica"], turn.id, turn.attempt), turn)
    assert await _rows(harness, asked) == before


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

    writes = {BEGIN_ROUND, CLOSE_BLOCK, SEAL_ROUND, START_CALLS, SETTLE_CALL, END_TURN}
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
    assert len(lost) == 9


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
    assert (turn.status, turn.attempt, len(lost)) == ("complete", 1, 1)


async def test_a_claim_that_somebody_else_made_meanwhile_is_not_run(harness: Harness) -> None:
    """The replica is held up between its claim and its first look at the turn."""
    provider = ScriptedProvider([])
    async with harness.replica(provider) as replica, harness.locker() as locker:
        asked = await harness.ask()
        async with locker.holding("LOCK TABLE chats IN ACCESS EXCLUSIVE MODE", commit=True):
            replica.worker.ring()
            await locker.waiting()
            (run,) = replica.worker._runs.values()
            await locker.connection.execute(
                "UPDATE turns SET attempt = attempt + 1, replica = $2 WHERE id = $1", asked.turn, new_id()
            )
        await run.task
    assert provider.requests == []
    assert (await harness.turn(asked)).attempt == 2


async def test_a_call_that_was_started_is_not_started_again_by_another_run_of_the_same_attempt(
    harness: Harness,
) -> None:
    @tool()
    async def note() -> str:
        """Must never be run twice."""
        raise AssertionError("it was")

    asked = await harness.ask(tools=[note])
    turn = await begun(harness, asked)
    records = await records_of(harness, turn)
    await records.close_block(CALL)
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
        replica.worker.ring()
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
        replica.worker.ring()
        await pause.reached.wait()
        await Turns(harness.database).cancel(OWNER, asked.chat, asked.turn)
        while replica.directory.running(asked.turn):
            replica.worker.ring()
            await harness.database.row(Statement("SELECT 1"))
    assert (await harness.turn(asked)).status == "cancelled"
