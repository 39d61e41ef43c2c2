"""A schedule with a tick per second on three servers that are killed in turns, and paused. Every tick runs exactly
once.

SCHEDULE_SECONDS sets the duration, and SCHEDULE_PAUSE the length of the pauses: 700 and 600 are the long run.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import cycle, pairwise
from pathlib import Path

import asyncpg
import pytest

from tests.faults.model import Call, Step, model_api
from tests.faults.replicas import Replica, replicas_with
from tests.support.http_client import Client

_SECONDS = float(os.environ.get("SCHEDULE_SECONDS", "12"))
_PAUSE = float(os.environ.get("SCHEDULE_PAUSE", _SECONDS / 4))
_SETTINGS = {"TURNSTREAM_SCHEDULE_INTERVAL": "1", "TURNSTREAM_LEASE": "2"}


def _answer(_: Call) -> list[Step]:
    return ["At noon."]


async def _ticked(connection: asyncpg.Connection, until: datetime) -> None:
    """Waits until the run of the tick `until`, and all earlier runs, have ended."""
    while True:
        row = await connection.fetchrow(
            "SELECT count(*) FILTER (WHERE state <> 'ended' AND tick <= $1) AS open, max(tick) AS last"
            " FROM schedule_runs",
            until,
        )
        assert row is not None
        if row["open"] == 0 and row["last"] is not None and row["last"] >= until:
            return
        await asyncio.sleep(0.1)


def _signal(replica: Replica, number: signal.Signals) -> None:
    os.kill(replica.pid, number)


@pytest.mark.extensions("schedules")
@pytest.mark.timeout(120 + 3 * _SECONDS)
async def test_every_tick_is_run_exactly_once_while_servers_are_killed_and_paused(
    database_url: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    kills = pauses = 0
    async with model_api(_answer) as model, replicas_with(database_url, tmp_path, model, *[_SETTINGS] * 3) as three:
        connection = await asyncpg.connect(database_url)
        ask = {"blocks": [{"type": "text", "text": "When is the tide high?"}]}
        async with Client(three[0].url) as client:
            body = {"name": "tides", "request": ask, "every": 1, "grace": 86_400}
            created = await client.post("/api/schedules", json=body)
            assert created.status_code == 201, created.text
        first = datetime.fromisoformat(created.json()["next_at"])
        await _ticked(connection, first)
        begin = await connection.fetchval("SELECT clock_timestamp()")
        for number, replica in enumerate(cycle(three)):
            now = await connection.fetchval("SELECT clock_timestamp()")
            left = _SECONDS - (now - begin).total_seconds()
            if left < 0 and pauses:
                break
            if number % 4 == 3 and (left > _PAUSE or not pauses):  # pause all at once, for longer than a lease
                pauses += 1
                for each in three:
                    _signal(each, signal.SIGSTOP)
                await connection.fetchval("SELECT pg_sleep($1)", _PAUSE)
                for each in three:
                    _signal(each, signal.SIGCONT)
            else:
                kills += 1
                await replica.restart(signal.SIGKILL)
        last = await connection.fetchval("SELECT clock_timestamp()")
        await _ticked(connection, last - timedelta(seconds=1))
        async with Client(three[0].url) as client:
            # After a pause, a server answers 503 until it has renewed its lease.
            path = f"/api/schedules/{created.json()['id']}"
            while (deleted := await client.delete(path)).status_code == 503:  # noqa: ASYNC110, the server names the time
                await asyncio.sleep(float(deleted.headers["retry-after"]))
            assert deleted.status_code == 200, deleted.text
        # The ticks are counted from the turns, because the schedule's own rows could be wrong.
        keys = await connection.fetch(
            "SELECT split_part(key, '/', 3)::timestamptz AS tick, turn_id FROM idempotency_keys"
            " WHERE key LIKE 'schedule/%' ORDER BY 1"
        )
        posted = await connection.fetchval("SELECT count(*) FROM turns WHERE role = 'assistant'")
        await connection.close()
    ticks = [row["tick"] for row in keys]
    record_property("kills, pauses and ticks", (kills, pauses, len(ticks)))
    assert ticks[0] == first
    assert {after - before for before, after in pairwise(ticks)} == {timedelta(seconds=1)}
    assert max(Counter(row["turn_id"] for row in keys).values()) == 1
    assert posted == len(ticks) >= _SECONDS
