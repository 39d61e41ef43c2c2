"""`python -m tests.bench.slope`: what the journal and block ends cost, for more and more turns at once.

Prints a row of docs/scaling.md for each size: CPU time of this process and of Postgres, for one tick and for one row.
"""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

from app.domain.blocks import Block
from app.kit.ids import new_id
from app.storage.database import Database, Statement, connect
from app.storage.migrations import upgrade
from app.storage.runs.journal import Journal, JournalEntry
from app.storage.runs.record import Records
from tests.bench.database import Postgres, bench_database

SIZES = (10, 100, 500, 2000)
TICKS = 20
# A tenth of a second of a fast model: 50 deltas a second of four characters each.
TEXT = "abcd" * 5
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
    SELECT id, :chat, :parent, 'assistant', 'running', 1, '{}', :parent FROM unnest(CAST(:turns AS uuid[])) AS id
    RETURNING id
    """
)


async def measure(work: Callable[[int], Awaitable[None]], postgres: Postgres, times: int) -> tuple[float, float]:
    """CPU milliseconds of us and of Postgres, for each of `times`."""
    ours, theirs = time.process_time(), postgres.cpu_seconds()
    for number in range(times):
        await work(number)
    return (time.process_time() - ours) * 1000 / times, (postgres.cpu_seconds() - theirs) * 1000 / times


async def measure_all(postgres: Postgres) -> None:
    print("| open blocks | server, ms per tick | µs per row | Postgres, ms per tick | µs per row |")
    print("|---|---|---|---|---|")
    async with connect(postgres.url, size=10) as database:
        journal = Journal(database)
        await journal.begin()
        for size in SIZES:
            turns = await running_turns(database, size)

            async def tick(number: int, turns: list[UUID] = turns) -> None:
                block = Block(0, 1, 1, "text")
                await journal.append([JournalEntry(turn, block, number * len(TEXT), TEXT) for turn in turns])

            await tick(0)
            ours, theirs = await measure(lambda number: tick(number + 1), postgres, TICKS)
            cells = (f"{ours:.2f}", f"{ours / size * 1000:.1f}", f"{theirs:.2f}", f"{theirs / size * 1000:.1f}")
            print(f"| {size} | {' | '.join(cells)} |")
        ours, theirs = await measure_block_ends(database, postgres)
        print(f"\nOne block end: server {ours:.3f} ms, Postgres {theirs:.3f} ms.")


async def running_turns(database: Database, count: int) -> list[UUID]:
    chat, parent, turns = new_id(), new_id(), [new_id() for _ in range(count)]
    await database.row(INSERT_CHAT, chat=chat)
    await database.row(INSERT_USER_TURN, chat=chat, turn=parent)
    await database.row(INSERT_TURNS, chat=chat, parent=parent, turns=turns)
    return turns


async def measure_block_ends(database: Database, postgres: Postgres) -> tuple[float, float]:
    turns = await running_turns(database, 100)
    records = [Records(database, new_id(), turn, 1) for turn in turns]

    async def close(number: int) -> None:
        block = Block(number // 100, 1, 1, "text", BLOCK)
        await records[number % 100].close_blocks([block])

    return await measure(close, postgres, 1000)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix=f"turnstream-{secrets.token_hex(4)}-") as folder:
        Path(folder).chmod(0o711)
        with bench_database(Path(folder)) as postgres:
            upgrade(postgres.url)
            asyncio.run(measure_all(postgres))


if __name__ == "__main__":
    main()
