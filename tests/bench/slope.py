"""`python -m tests.bench.slope` measures the costs of the journal and of the ends of blocks, for growing numbers of
concurrent turns.

It prints the rows of tests/bench/scaling.md. Each load is measured with two forms of the journal alternately: the
current log, and the former rows of blocks (an unlogged row for each open block and tick).
"""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.bench.database import Postgres, bench_database
from turnstream.domain.blocks import Block
from turnstream.domain.events import BlockStart
from turnstream.domain.turns import Turn
from turnstream.engine.upkeep import journal_writer
from turnstream.engine.upkeep.journal_writer import JournalWriter
from turnstream.kit.ids import new_id
from turnstream.libraries.erasure.owners import ERASE_WITH_TURNS
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Database, Statement, connect
from turnstream.storage.migrations import upgrade
from turnstream.storage.runs.journal import Journal, JournalEntry, OpenTexts
from turnstream.storage.runs.record import Records
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView

# For each load: the number of turns, and how many deltas of four characters each turn has per second.
LOADS = ((10, 10), (50, 10), (100, 10), (200, 50), (1000, 50))
ROUNDS = 3
SECONDS = 4  # seconds that a block lasts; its journal is deleted at its end
TICKS = 10  # per second
BLOCK = "abcd" * 250

INSERT_CHAT = Statement("INSERT INTO chats (id, owner) VALUES (:chat, 'bench') RETURNING id")
INSERT_USER_TURN = Statement(
    """
    INSERT INTO turns (id, chat_id, role, status, ended_at) VALUES (:turn, :chat, 'user', 'complete', now())
    RETURNING id
    """
)
INSERT_TURNS = Statement(
    """
    INSERT INTO turns (id, chat_id, parent_id, role, status, attempt, request, replica)
    SELECT id, :chat, :parent, 'assistant', 'running', 1, '{"model": "bench"}', :parent
    FROM unnest(CAST(:turns AS uuid[])) AS id
    RETURNING id
    """
)
SET_LOGGED = Statement("ALTER TABLE open_text SET LOGGED")
SET_UNLOGGED = Statement("ALTER TABLE open_text SET UNLOGGED")
# Counts dead rows, which vacuum must remove. TOAST stores the text of large ticks in rows that are chunks of 2 kB.
GET_WRITTEN = Statement(
    """
    SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal, (
        SELECT sum(n_tup_upd + n_tup_del) FROM pg_stat_all_tables
        WHERE relid IN (
            SELECT unnest(ARRAY[oid, reltoastrelid]) FROM pg_class WHERE relname IN ('open_text', 'journal_ticks')
        )
    ) AS dead
    """
)
FLUSH_STATISTICS = Statement("SELECT pg_stat_force_next_flush()")


class RowsOfBlocks(Journal):
    """The former journal."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, new_id())
        self._texts = OpenTexts(database)

    async def append(self, entries: Sequence[JournalEntry]) -> bool:
        await self._texts.store(entries)
        return True

    async def checkpoint(self, entries: Sequence[JournalEntry]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Cost:
    """The CPU seconds, the bytes of WAL, and the dead rows."""

    server: float = 0.0
    postgres: float = 0.0
    wal: float = 0.0
    dead: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.server + other.server, self.postgres + other.postgres, self.wal + other.wal, self.dead + other.dead
        )

    def shown(self, pieces: int) -> str:
        """Formats the cost of one piece, with CPU in microseconds."""
        ours, theirs = self.server / pieces * 1e6, self.postgres / pieces * 1e6
        return f"{ours:.1f} | {theirs:.1f} | {self.wal / pieces:.0f} | {self.dead / pieces:.2f}"


async def cost_of(work: Callable[[], Awaitable[None]], database: Database, postgres: Postgres) -> Cost:
    await database.row(FLUSH_STATISTICS)
    before = await database.row(GET_WRITTEN)
    ours, theirs = time.process_time(), postgres.cpu_seconds()
    await work()
    ours, theirs = time.process_time() - ours, postgres.cpu_seconds() - theirs
    await database.row(FLUSH_STATISTICS)
    after = await database.row(GET_WRITTEN)
    assert before is not None
    assert after is not None
    return Cost(ours, theirs, float(after["wal"] - before["wal"]), float(after["dead"] - before["dead"]))


async def measure_all(postgres: Postgres) -> None:
    print("| turns | form | server, µs per turn and tick | Postgres, µs | WAL, bytes | dead rows |")
    print("|---|---|---|---|---|---|")
    async with connect(postgres.url, size=1) as database:  # one backend: each backend keeps statistics until a flush
        for count, rate in LOADS:
            turns = await running_turns(database, count)
            costs = {"rows of blocks": Cost(), "log": Cost()}
            for form in [*costs] * ROUNDS:
                is_log = form == "log"
                await database.row(SET_LOGGED if is_log else SET_UNLOGGED)
                journal = Journal(database, new_id()) if is_log else RowsOfBlocks(database)
                costs[form] += await cost_of(partial(a_block, database, journal, turns, rate), database, postgres)
            for form, cost in costs.items():
                print(f"| {count} of {rate}/s | {form} | {cost.shown(count * SECONDS * TICKS * ROUNDS)} |", flush=True)
        print(f"\nOne block end: {await block_end(database, postgres)}.")


async def a_block(database: Database, journal: Journal, turns: Sequence[Turn], rate: int) -> None:
    """Writes the journal of one open block for each turn, from the block's start to its end."""
    directory = Directory()
    writer = JournalWriter(journal, directory, 1 / TICKS)
    with ExitStack() as running:
        views = [LiveView(turn) for turn in turns]
        for view in views:
            view.open_block(BlockStart(1, 0, 1, "text", None, None))
            running.enter_context(directory.host(view, "bench"))
        for tick in range(SECONDS * TICKS):
            for view in views:
                view.append("abcd" * (rate // TICKS))
            journal_writer.CHECKPOINT = 3600.0 if (tick + 1) % TICKS else 0.0
            if await writer.tick():
                await writer.checkpoint()
    for statement in ERASE_WITH_TURNS:
        await database.row(statement, turns=[turn.id for turn in turns])


async def running_turns(database: Database, count: int) -> list[Turn]:
    chat, parent, turns = new_id(), new_id(), [new_id() for _ in range(count)]
    await database.row(INSERT_CHAT, chat=chat)
    await database.row(INSERT_USER_TURN, chat=chat, turn=parent)
    await database.row(INSERT_TURNS, chat=chat, parent=parent, turns=turns)
    *_, first = await Turns(database).path("bench", chat, turns[0])
    return [replace(first, id=turn) for turn in turns]


async def block_end(database: Database, postgres: Postgres) -> str:
    turns = await running_turns(database, 100)
    records = [Records(database, new_id(), partial(replace, turn)) for turn in turns]

    async def close() -> None:
        for number in range(1000):
            await records[number % 100].close_blocks([Block(number // 100, 1, 1, "text", BLOCK)])

    cost = await cost_of(close, database, postgres)
    return f"server {cost.server:.3f} ms, Postgres {cost.postgres:.3f} ms, {cost.wal / 1000:.0f} bytes of WAL"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix=f"turnstream-{secrets.token_hex(4)}-") as folder:
        Path(folder).chmod(0o711)
        with bench_database(Path(folder)) as postgres:
            upgrade(postgres.url)
            asyncio.run(measure_all(postgres))


if __name__ == "__main__":
    main()
