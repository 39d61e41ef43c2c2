"""A failover to an asynchronous standby loses the last seconds of a running turn. The run writes these rows again."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from tests.integration.records import claimed, first_round, sealed
from tests.support.harness import LOOK, POLICY, Asked, Harness, assert_is_whole, rows_of, texts_of
from tests.support.stream_client import Client, encode
from turnstream.domain.asks import Ask, Steer
from turnstream.domain.blocks import Block, PreliminaryOutput
from turnstream.domain.errors import ClaimLost
from turnstream.domain.kinds import TEXT, TOOL_RESULT, TOOL_USE, USER_TEXT
from turnstream.domain.turns import Turn
from turnstream.kit.ids import new_id
from turnstream.kit.signals import Signals
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, thinking, tool_use
from turnstream.storage.database import Statement
from turnstream.storage.rows import to_json
from turnstream.storage.runs.record import NewJob, Records, SettledCall, begin_rounds
from turnstream.storage.runs.snapshots import Snapshots
from turnstream.stream.directory import Directory
from turnstream.stream.mirror import Mirror
from turnstream.stream.reader import follow
from turnstream.tools.tool import tool

# Simulates commits that were not replicated and are missing on the new primary.
LOSSES = {
    "the last block": ["DELETE FROM blocks WHERE turn_id = $1 AND index = 2"],
    "all blocks": ["DELETE FROM blocks WHERE turn_id = $1"],
    "the seal": ["UPDATE rounds SET sealed_by = NULL, sealed_at = NULL, stop_reason = NULL WHERE turn_id = $1"],
    "the last block and the seal": [
        "DELETE FROM blocks WHERE turn_id = $1 AND index = 2",
        "UPDATE rounds SET sealed_by = NULL, sealed_at = NULL, stop_reason = NULL WHERE turn_id = $1",
    ],
    "the whole round": [
        "DELETE FROM rounds WHERE turn_id = $1",
        "DELETE FROM blocks WHERE turn_id = $1",
        "DELETE FROM tool_calls WHERE turn_id = $1",
    ],
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("during", ["tool", "answer"])
async def test_rows_that_postgres_lost_are_written_again_before_the_turn_ends(
    harness: Harness, loss: list[str], during: str
) -> None:
    reached, go, pause = asyncio.Event(), asyncio.Event(), Pause()

    @tool()
    async def look() -> str:
        """Looks."""
        if during == "tool":
            reached.set()
            await go.wait()
        return "seen"

    answer = list(message_of(text("There it is.")))
    provider = ScriptedProvider(
        [
            message_of(thinking("Hm."), text("I look."), tool_use("look", {}, "call_1")),
            [*answer[:-1], pause, *answer[-1:]] if during == "answer" else answer,
        ]
    )
    asked = await harness.ask(tools=[look])
    async with harness.replica(provider, [look]) as replica, harness.locker() as locker:
        finishing = asyncio.create_task(harness.finish(replica, asked))
        await (reached.wait() if during == "tool" else pause.reached.wait())
        for statement in loss:
            await locker.connection.execute(statement, asked.turn)
        if during == "answer":
            await locker.connection.execute("DELETE FROM blocks WHERE turn_id = $1 AND index > 2", asked.turn)
        go.set()
        pause.go.set()
        turn = await finishing
    assert turn.status == "complete"
    assert [block.type for block in turn.blocks] == ["thinking", "text", "tool_use", "tool_result", "text"]
    assert texts_of(turn) == ["I look.", "There it is."]
    assert [round.stop_reason for round in turn.rounds] == ["tool_use", "end_turn"]
    assert len(await rows_of(harness.database, asked)) == 4


@pytest.mark.parametrize("name", ["the seal", "the last block and the seal", "the whole round"])
async def test_a_reader_who_comes_while_rows_are_lost_receives_them_once_they_are_written_again(
    harness: Harness, name: str
) -> None:
    """The reader comes to another replica, which has only the rows. A standby has all commits up to some point, so no
    loss leaves a gap.
    """
    reached, go, looked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool()
    async def look() -> str:
        """Looks."""
        reached.set()
        await go.wait()
        return "seen"

    calling = message_of(thinking("Hm."), text("I look."), tool_use("look", {}, "call_1"))
    asked, reader, elsewhere = await harness.ask(tools=[look]), Client(), Directory()
    mirror = Mirror(Snapshots(harness.database), elsewhere, LOOK)

    async def read() -> None:
        view = elsewhere.view(await harness.turn(asked))
        async for frames in follow(elsewhere, view, lambda: harness.turn(asked), reader.cursor, encode):
            reader.take(frames)
            looked.set()

    replies = [calling, message_of(text("There it is."))]
    async with harness.replica(ScriptedProvider(replies), [look]) as replica, harness.locker() as locker:
        finishing = asyncio.create_task(harness.finish(replica, asked))
        await reached.wait()
        for statement in LOSSES[name]:
            await locker.connection.execute(statement, asked.turn)
        mirroring, reading = asyncio.create_task(mirror.run()), asyncio.create_task(read())
        await looked.wait()
        assert len(reader.blocks) < 3 or reader.rounds[1] is None
        go.set()
        turn = await finishing
        await reading
        mirroring.cancel()
    reader.assert_holds(turn)
    assert not reader.resets


# --- each write ------------------------------------------------------------------------------------------------------

CALLS = [Block(number, 1, 1, TOOL_USE, "{}", None, f"call_{number}", "note") for number in (0, 1)]
RESULT = Block(2, 1, 1, TOOL_RESULT, "done", tool_use_id="call_0", name="note")
ASKED = Ask(1, "call_1", "note", "approval", "0" * 64, 1)
SIGN_IN = Ask(1, "call_1#1.1", "note", "sign_in", "0" * 64, 1, question='{"server": "calendar"}')
SAID = (Block(0, 0, 0, TEXT, "Faster"),)
SPOKEN = Steer(new_id(), SAID, to_json(SAID))
WORDS = Block(3, 1, 1, USER_TEXT, "Faster", notes=to_json({"steer": str(SPOKEN.id)}))
NEXT = replace(first_round(), number=2)
ANSWER = Block(4, 2, 1, TEXT, "Done.")

SAY = Statement("INSERT INTO steers (id, turn_id, blocks) VALUES (:steer, :turn, CAST(:blocks AS json)) RETURNING id")
TAKEN = Statement("SELECT taken_at IS NOT NULL AS taken FROM steers WHERE turn_id = :turn")
LEDGER = Statement("SELECT tool_use_id FROM tool_calls WHERE turn_id = :turn AND state = 'started'")
LOSE = [
    Statement(f"DELETE FROM {table} WHERE turn_id = :turn RETURNING turn_id")
    for table in ("blocks", "rounds", "asks", "tool_calls", "charges")
] + [
    Statement("UPDATE turns SET asked = 0 WHERE id = :turn RETURNING id"),
    Statement("UPDATE steers SET taken_at = NULL WHERE turn_id = :turn RETURNING id"),
]
JOB = NewJob(new_id(), CALLS[1], "tool", "{}", datetime(2026, 1, 1, tzinfo=UTC))
WRITES: dict[str, Callable[[Records, Turn], Awaitable[object]]] = {
    "close_blocks": lambda records, _: records.close_blocks([ANSWER], [NEXT]),
    "seal_round": lambda records, turn: records.seal_round(sealed(NEXT), [ANSWER], turn),
    "void_round": lambda records, turn: records.void_round(replace(NEXT, stop_reason="voided"), turn),
    "start_calls": lambda records, _: records.start_calls([CALLS[1]]),
    "start_jobs": lambda records, _: records.start_jobs([JOB], 2),
    "start_reports": lambda records, _: records.start_reports(
        [replace(JOB, reports=True)], [replace(RESULT, index=4, tool_use_id="call_1")], 2
    ),
    "store_preliminary": lambda records, _: records.store_preliminary(PreliminaryOutput(1, "call_1", "note", "so far")),
    "ask": lambda records, _: records.ask([replace(ASKED, tool_use_id="call_0")], 2),
    "ask_to_sign_in": lambda records, _: records.ask_to_sign_in(CALLS[1], SIGN_IN, 2),
    "settle_calls": lambda records, _: records.settle_calls(
        [SettledCall(replace(RESULT, index=4, tool_use_id="call_1"), "settled")]
    ),
    "apply_steers": lambda records, _: records.apply_steers([replace(WORDS, index=4)], [SPOKEN]),
    "wait": lambda records, turn: records.wait(turn.arrivals),
    "release": lambda records, _: records.release(None),
    "end": lambda records, turn: records.end(replace(turn, status="complete", stop_reason="end_turn")),
    "seal_and_end": lambda records, turn: records.seal_and_end(
        sealed(NEXT), [ANSWER], replace(turn, status="complete", stop_reason="end_turn")
    ),
}


async def in_the_middle(harness: Harness, replica: UUID) -> tuple[Asked, Records]:
    """Returns a turn with two calls: one has its result, the other is running and has asked a person."""
    asked = await harness.ask()
    now = turn = await claimed(harness, asked, replica)
    await harness.database.row(SAY, steer=SPOKEN.id, turn=turn.id, blocks=to_json(SPOKEN.blocks))
    records = Records(harness.database, replica, lambda: now)
    await records.close_blocks(CALLS, [first_round()])
    await records.seal_round(sealed(first_round()), [], turn, CALLS)
    await records.ask([ASKED], 1)
    await records.settle_calls([SettledCall(RESULT, "settled")])
    await records.apply_steers([WORDS], [SPOKEN])
    now = await harness.turn(asked)
    return asked, records


async def lose(harness: Harness, asked: Asked) -> None:
    for statement in LOSE:
        await harness.database.rows(statement, turn=asked.turn)


def test_every_write_there_is_is_tried() -> None:
    others = {"count_hook_failures"}  # the write belongs to turns that have ended
    assert {name for name in vars(Records) if name[0] != "_"} - others == WRITES.keys()


@pytest.mark.parametrize("name", WRITES)
async def test_every_write_includes_earlier_lost_writes(harness: Harness, name: str) -> None:
    asked, records = await in_the_middle(harness, new_id())
    known = await harness.turn(asked)
    await lose(harness, asked)
    assert await begin_rounds(harness.database, [(known, NEXT)]) == set(), "rows without what stands before them"
    await WRITES[name](records, known)
    turn = await harness.turn(asked)
    assert turn.blocks[: len(known.blocks)] == known.blocks
    assert turn.rounds[: len(known.rounds)] == known.rounds
    assert ASKED in turn.asks
    assert [row["taken"] for row in await harness.database.rows(TAKEN, turn=asked.turn)] == [True]
    running = set() if name in {"settle_calls", "ask_to_sign_in"} else {"call_1"}
    assert {row["tool_use_id"] for row in await harness.database.rows(LEDGER, turn=asked.turn)} == running
    assert (await harness.charged(asked.turn)).keys() >= {"1.1"}


async def test_a_job_that_postgres_lost_may_have_been_begun(harness: Harness) -> None:
    asked, records = await in_the_middle(harness, new_id())
    records._started.clear()  # the call is a job and not also a started call
    await records.start_jobs([JOB], 2)
    await lose(harness, asked)
    await harness.database.rows(Statement("DELETE FROM jobs WHERE turn_id = :turn RETURNING id"), turn=asked.turn)
    await records.wait(0)
    attempts = Statement("SELECT id, attempt FROM jobs WHERE turn_id = :turn")
    assert [tuple(row) for row in await harness.database.rows(attempts, turn=asked.turn)] == [(JOB.id, 1)]


async def test_a_voided_round_that_came_back_is_voided_again(harness: Harness) -> None:
    replica = new_id()
    asked, records = await in_the_middle(harness, replica)
    draft, known = replace(ANSWER, text="A draft."), await harness.turn(asked)
    await records.close_blocks([draft], [NEXT])
    await records.void_round(replace(NEXT, stop_reason="voided"), known)
    now = await harness.turn(asked)
    records = Records(harness.database, replica, lambda: now)
    await harness.database.row(Statement("UPDATE turns SET attempt = 1 WHERE id = :turn RETURNING id"), turn=asked.turn)
    earlier = Records(harness.database, replica, lambda: known)
    await earlier.close_blocks([draft])
    again = replace(ANSWER, attempt=2)
    await records.close_blocks([again], [replace(NEXT, attempt=2)])
    turn = await harness.turn(asked)
    assert (turn.attempt, turn.blocks) == (2, (*known.blocks, again))
    with pytest.raises(ClaimLost):
        await earlier.close_blocks([draft])


# --- the end ---------------------------------------------------------------------------------------------------------

REOPEN = Statement(
    """
    UPDATE turns SET status = 'running', replica = :replica, ended_at = NULL, stop_reason = NULL, usage = '{}'
    WHERE id = :turn RETURNING id
    """
)


async def test_turns_after_a_lost_end_are_read_again(harness: Harness) -> None:
    provider = ScriptedProvider(lambda _: message_of(text("Hello.")))
    async with harness.replica(provider) as replica:
        first = await harness.ask()
        await harness.finish(replica, first)
        async with harness.locker() as locker:  # another replica runs the turn again
            await locker.connection.execute(
                "UPDATE blocks SET text = 'Ahoy.' WHERE turn_id = $1 AND round = 1", first.turn
            )
        signals = Signals()
        replica.worker.follow(signals)
        signals.suspect.send()
        await harness.finish(replica, await harness.ask(after=first))
    assert "Ahoy." in str(provider.requests[-1].messages)


async def test_a_turn_whose_end_is_lost_runs_again_in_an_attempt_that_no_reader_has_seen(
    harness: Harness, attempts_are_counted: pytest.MonkeyPatch
) -> None:
    attempts_are_counted.undo()
    provider = ScriptedProvider([message_of(text("Hello.")), message_of(text("Hello again."))])
    async with harness.replica(provider, policy=replace(POLICY, poll_interval=0.01)) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        reader = await harness.follow(replica, asked)
        await replica.idle(asked)
        await lose(harness, asked)
        await harness.database.row(REOPEN, turn=asked.turn, replica=replica.queue.replica)
        await harness.follow(replica, asked, reader)
        await replica.idle(asked)
    turn = await harness.turn(asked)
    assert_is_whole(turn)
    assert texts_of(turn) == ["Hello again."]
    assert reader.resets
    reader.assert_holds(turn)
