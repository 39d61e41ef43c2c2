"""An attempt that has lost its claim writes nothing more, however late it notices the loss."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest

from tests.support.locks import Locker
from turnstream.domain.asks import Ask, Steer
from turnstream.domain.blocks import Block, PreliminaryOutput
from turnstream.domain.errors import ClaimLost
from turnstream.domain.rounds import Round
from turnstream.domain.turns import Turn, TurnRequest
from turnstream.kit.ids import new_id
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.chats.chats import Chats
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Database, Statement, Transaction, connect
from turnstream.storage.rows import to_json
from turnstream.storage.runs.queue import Queue
from turnstream.storage.runs.record import NewJob, Records, SettledCall, begin_rounds

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CALL = Block(0, 1, 1, "tool_use", "{}", None, "call_1", "n")
RESULT = Block(1, 1, 1, "tool_result", "x", None, "call_1", "n")
SAID = Block(1, 1, 1, "user_text", "Hurry")
SPOKEN = Steer(new_id(), (SAID,), to_json((SAID,)))
ASK = Ask(1, "call_1", "n", "approval", "0" * 64, 1, NOW)
SIGN_IN = Ask(1, "call_1#1.1", "n", "sign_in", "0" * 64, 1, NOW, question='{"server": "calendar"}')
OPEN = Block(1, 1, 1, "text", "half a sent", interrupted=True)
ROUND = Round(1, 1, 1, started_at=NOW)
SEALED = replace(ROUND, stop_reason="tool_use", sealed_by=1, sealed_at=NOW)


@dataclass(frozen=True)
class Running:
    """A turn in its first attempt with an open round, and the replica that runs it."""

    turn: Turn
    replica: UUID
    records: Records
    database: Database


Write = Callable[[Running], Awaitable[Any]]
Everything = Callable[[], Awaitable[dict[str, list[str]]]]


async def _show_output(running: Running) -> None:
    """Stores the output of a started call."""
    await running.records.start_calls([CALL])
    await running.records.store_preliminary(PreliminaryOutput(CALL.round, CALL.tool_use_id or "", "look", "so far"))


WRITES: dict[str, Write] = {
    "close_blocks": lambda r: r.records.close_blocks([OPEN], [replace(ROUND, number=2)]),
    "seal_round": lambda r: r.records.seal_round(SEALED, [OPEN], replace(r.turn, usage={"output_tokens": 9})),
    "void_round": lambda r: r.records.void_round(replace(ROUND, stop_reason="voided"), replace(r.turn, recoveries=1)),
    "start_calls": lambda r: r.records.start_calls([CALL]),
    "start_jobs": lambda r: r.records.start_jobs([NewJob(new_id(), CALL, "tool", "{}", NOW)], 1),
    "start_reports": lambda r: r.records.start_reports([NewJob(new_id(), CALL, "tool", "{}", NOW, True)], [RESULT], 1),
    "store_preliminary": _show_output,
    "ask": lambda r: r.records.ask([ASK], 1),
    "ask_to_sign_in": lambda r: r.records.ask_to_sign_in(CALL, SIGN_IN, 1),
    "apply_steers": lambda r: r.records.apply_steers([SAID], [SPOKEN]),
    "wait": lambda r: r.records.wait(0),
    "settle_calls": lambda r: r.records.settle_calls([SettledCall(RESULT, "settled")]),
    "end": lambda r: r.records.end(replace(r.turn, status="complete", stop_reason="end_turn")),
    "seal_and_end": lambda r: r.records.seal_and_end(
        SEALED, [OPEN], replace(r.turn, status="complete", stop_reason="end_turn")
    ),
    "release": lambda r: r.records.release(None),
}

SAY = Statement("INSERT INTO steers (id, turn_id, blocks) VALUES (:steer, :turn, CAST(:blocks AS json)) RETURNING id")

all_writes = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())

CLAIMED_AGAIN = "UPDATE turns SET attempt = attempt + 1, replica = gen_random_uuid() WHERE id = $1"
LOSSES = {
    "another replica claimed it": CLAIMED_AGAIN,
    "another replica claimed it twice": CLAIMED_AGAIN.replace("+ 1", "+ 2"),
    "the same replica claimed it": CLAIMED_AGAIN.replace("gen_random_uuid()", "replica"),
    "it was cancelled": "UPDATE turns SET status = 'cancelled', replica = NULL, ended_at = now() WHERE id = $1",
    "it was deleted": "DELETE FROM turns WHERE id = $1",
}


def test_every_write_there_is_is_tried() -> None:
    writes = {name for name, method in vars(Records).items() if iscoroutinefunction(method) and name[0] != "_"}
    # Hooks also run at the end of a turn, and failed hooks are counted on the ended turn.
    assert writes - {"count_hook_failures"} == WRITES.keys()


@pytest.fixture
async def running(database_url: str) -> AsyncIterator[Running]:
    async with connect(database_url, size=2) as database:
        chat = await Chats(database).create("ada", None, None, {})
        async with Exchanges(database).after(Target("ada", chat.id), None) as draft:
            exchange = await draft.create([Block(0, 0, 0, "text", "Hi")], TurnRequest("m"), None)
        queue = Queue(database, new_id(), "here", 1)
        assert await queue.claim(10) == [exchange.assistant_turn.id]
        turn = await Turns(database).get("ada", chat.id, exchange.assistant_turn.id)
        records = Records(database, queue.replica, lambda: turn)
        await records.close_blocks([CALL], [ROUND])
        await database.rows(SAY, steer=SPOKEN.id, turn=turn.id, blocks=SPOKEN.stored)
        yield Running(turn, queue.replica, records, database)


@pytest.fixture
async def everything(database_url: str) -> AsyncIterator[Everything]:
    """Reads all rows. The connection is kept, because each new connection has to load the description of every
    table.
    """
    connection = await asyncpg.connect(database_url)

    async def read() -> dict[str, list[str]]:
        found = {name: await connection.fetch(f"SELECT t::text FROM {name} t ORDER BY 1") for name in ALL_TABLES}
        return {name: [row["t"] for row in rows] for name, rows in found.items()}

    yield read
    await connection.close()


@pytest.fixture
async def locker(database_url: str) -> AsyncIterator[Locker]:
    holder, watcher = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    yield Locker(holder, watcher)
    await holder.close()
    await watcher.close()


@all_writes
async def test_the_holder_of_the_claim_may_write(running: Running, write: Write, everything: Everything) -> None:
    before = await everything()
    await write(running)
    assert await everything() != before


@all_writes
async def test_a_write_whose_answer_was_lost_can_be_written_again(
    running: Running, write: Write, everything: Everything
) -> None:
    await write(running)
    once = await everything()
    await write(replace(running, records=Records(running.database, running.replica, lambda: running.turn)))
    assert timeless(await everything()) == timeless(once)


@all_writes
async def test_a_write_that_is_written_again_while_it_is_still_under_way_is_written_once(
    running: Running, write: Write, everything: Everything, locker: Locker
) -> None:
    async with running.database.transaction() as under_way:
        records = Records(cast("Database", Within(under_way)), running.replica, lambda: running.turn)
        await write(replace(running, records=records))
        again = asyncio.ensure_future(write(running))
        await locker.waiting()
    once = await everything()
    await again
    assert timeless(await everything()) == timeless(once)


class Within:
    """Makes a transaction usable where a database is expected."""

    def __init__(self, connection: Transaction) -> None:
        self.row = connection.row
        self.transaction = partial(nullcontext, connection)


def timeless(rows: dict[str, list[str]]) -> dict[str, list[str]]:
    return {table: [re.sub(r'"[\d-]+ [\d:.]+\+00"', "now", row) for row in found] for table, found in rows.items()}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
async def test_after_a_lost_claim_every_write_fails_and_leaves_no_trace(
    running: Running, loss: str, everything: Everything, locker: Locker
) -> None:
    await locker.connection.execute(loss, running.turn.id)
    before = await everything()
    for name, write in WRITES.items():
        with pytest.raises(ClaimLost):
            await write(running)
        assert await everything() == before, name


@all_writes
async def test_a_claim_that_is_lost_in_the_middle_of_a_write_is_lost(
    running: Running, write: Write, everything: Everything, locker: Locker
) -> None:
    async with locker.holding(CLAIMED_AGAIN, running.turn.id, commit=True):
        late = asyncio.ensure_future(write(running))
        await locker.waiting()
    before = await everything()
    with pytest.raises(ClaimLost):
        await late
    assert await everything() == before


# --- rounds that have begun, of many turns at once -------------------------------------------------------------------

NEXT_ROUND = replace(ROUND, number=2)


async def test_a_round_that_has_begun_is_stored_once_and_not_reopened(running: Running, everything: Everything) -> None:
    turn = running.turn.id
    await running.records.seal_round(SEALED, [], running.turn)
    begun = [(running.turn, NEXT_ROUND), (replace(running.turn, id=new_id()), ROUND)]
    assert await begin_rounds(running.database, begun) == {turn}
    once = await everything()
    assert await begin_rounds(running.database, begun) == {turn}
    assert await begin_rounds(running.database, [(running.turn, ROUND)]) == {turn}
    assert await everything() == once


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
async def test_a_round_that_has_begun_leaves_no_trace_where_the_claim_is_lost(
    running: Running, loss: str, everything: Everything, locker: Locker
) -> None:
    async with locker.holding(loss, running.turn.id, commit=True):
        assert await begin_rounds(running.database, [(running.turn, NEXT_ROUND)]) == set(), "it waits for nobody"
    before = await everything()
    assert await begin_rounds(running.database, [(running.turn, NEXT_ROUND)]) == set()
    assert await everything() == before


@pytest.mark.parametrize("name", ["end", "wait"])
async def test_an_arrival_during_the_last_write_puts_the_turn_back_into_the_queue(
    running: Running, name: str, locker: Locker
) -> None:
    async with locker.holding("UPDATE turns SET arrivals = 1 WHERE id = $1", running.turn.id, commit=True):
        last = asyncio.ensure_future(WRITES[name](running))
        await locker.waiting()
    await last
    row = await locker.connection.fetchrow("SELECT status, ended_at, replica FROM turns WHERE id = $1", running.turn.id)
    assert row is not None
    assert tuple(row) == ("queued", None, None)
