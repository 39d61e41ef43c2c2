"""The removal of old rows in small steps, by one replica at a time."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tests.support.harness import Harness
from tests.support.sweeping import id_of, swept
from turnstream.domain.errors import StatementTooLong
from turnstream.engine.upkeep.sweeps import Sweep
from turnstream.kit.ids import new_id
from turnstream.storage.retention import Sweeps, old_keys
from turnstream_lab.recordings import Recordings
from turnstream_lab.sweeping import present_turns

DAYS = 30


async def test_idempotency_keys_are_deleted_by_their_age(harness: Harness) -> None:
    asked = await harness.ask()
    old = id_of(DAYS + 1)
    async with harness.locker() as locker:
        await locker.connection.execute("UPDATE turns SET id = $2 WHERE id = $1", asked.turn, old)
        await locker.connection.execute(
            "INSERT INTO idempotency_keys (owner, key, digest, turn_id, created_at)"
            " SELECT 'ada', key, 'd', CASE WHEN key NOT LIKE 'withdrawn%' THEN $1::uuid END,"
            " now() - make_interval(days => days) FROM ("
            "VALUES ('old', 31), ('new', 1), ('withdrawn long ago', 31), ('withdrawn', 1)) AS keys (key, days)",
            old,
        )
        assert await swept(old_keys(harness.database, DAYS)) == 2
        kept = await locker.connection.fetch("SELECT key FROM idempotency_keys ORDER BY key")
        assert [row["key"] for row in kept] == ["new", "withdrawn"]


async def test_recordings_go_with_their_turn_and_by_their_age(harness: Harness, tmp_path: Path) -> None:
    kept, aged = await harness.ask(), await harness.ask()
    recordings = Recordings(tmp_path)
    for turn in (kept.turn, aged.turn, new_id()):
        assert recordings.keep(turn, "attempt-001-round-001-try-01.jsonl", b"{}\n")
    assert not recordings.keep(kept.turn, "../attempt-001-round-001-try-01.jsonl", b"{}\n")
    (tmp_path / "other").mkdir()

    async def present(turns: Sequence[UUID]) -> set[UUID]:
        return await present_turns(harness.database, turns)

    assert await swept(recordings.sweep(present, None)) == 1
    os.utime(tmp_path / str(aged.turn), (0, time.time() - 2 * 86_400))
    assert await swept(recordings.sweep(present, 3)) == 0
    assert await swept(recordings.sweep(present, 1)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"other", str(kept.turn)}


async def test_one_replica_sweeps_at_a_time(harness: Harness) -> None:
    """Two replicas check at once. The third replica checks before the next sweep is due."""
    begun, go, runs = asyncio.Event(), asyncio.Event(), []

    async def steps() -> AsyncGenerator[int, None]:
        runs.append(1)
        begun.set()
        await go.wait()
        yield 3

    sweeps = Sweeps(harness.database)
    replicas = [Sweep("rows", 3600, steps) for _ in range(3)]
    first = asyncio.create_task(replicas[0].look(sweeps))
    await begun.wait()
    await replicas[1].look(sweeps)
    go.set()
    await first
    await replicas[2].look(sweeps)
    assert len(runs) == 1
    async with harness.locker() as locker:
        await locker.connection.execute("UPDATE sweeps SET due_at = now()")
    await replicas[2].look(sweeps)
    assert len(runs) == 2


async def test_a_sweep_continues_until_nothing_is_left_and_rests_in_between(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    sleep = asyncio.sleep

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    monkeypatch.setattr("turnstream.engine.upkeep.sweeps.asyncio.sleep", rest)

    async def steps() -> AsyncGenerator[int, None]:
        for count in (100, 100, 7):
            yield count

    await Sweep("rows", 3600, steps).look(Sweeps(harness.database))
    assert len(rests) == 3
    assert min(rests) >= 0.05


async def test_a_step_that_is_too_long_is_tried_again_after_the_period(harness: Harness) -> None:
    runs = 0

    async def steps() -> AsyncGenerator[int, None]:
        nonlocal runs
        runs += 1
        yield 1
        raise StatementTooLong("A statement took longer than it may.")

    sweep, sweeps = Sweep("rows", 3600, steps), Sweeps(harness.database)
    with capture_logs() as logs:
        await sweep.look(sweeps)
        await sweep.look(sweeps)
    assert runs == 1
    assert [line["event"] for line in logs] == ["sweep.too_long", "sweep.removed"]
    async with harness.locker() as locker:
        due = await locker.connection.fetchval("SELECT due_at > now() + interval '59 minutes' FROM sweeps")
    assert due
