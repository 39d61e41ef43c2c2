"""Servers that are killed just before or after a trigger's message is stored. The message is sent again: each id has
one turn and one run.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from tests.support.http_client import Client, said
from tests.support.locks import connection_to
from tests.support.server_process import Server
from turnstream.libraries.outgoing.signature import headers_of

pytestmark = [pytest.mark.extensions("schedules", "demo"), pytest.mark.timeout(240), pytest.mark.full]

LOCKED = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
END_LOCKED = f"SELECT pg_terminate_backend(pid) FROM ({LOCKED}) AS waiting"
STATUS = "SELECT count(*) FROM turns WHERE role = 'assistant' AND status = $1"
COUNTS = """
    SELECT (SELECT count(*) FROM turns WHERE role = 'user'), (SELECT count(*) FROM turns WHERE role = 'assistant'),
        (SELECT count(*) FROM schedule_runs), (SELECT count(*) FROM schedule_runs WHERE state = 'ended'),
        (SELECT count(*) FROM idempotency_keys)
"""


async def until(found: Callable[[], Any]) -> None:
    while not await found():  # noqa: ASYNC110, rows of another process have no event
        await asyncio.sleep(0.02)


@asynccontextmanager
async def held(database_url: str, table: str) -> AsyncIterator[None]:
    """Locks the table against writes. At the end, the sessions of waiting writes are terminated, so that these writes
    have no effect.
    """
    async with connection_to(database_url) as rows, rows.transaction():
        await rows.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
        yield
        await rows.execute(END_LOCKED)
        while await rows.fetchval(LOCKED):  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.01)


async def test_each_message_has_one_turn_and_one_run_after_kills_at_all_its_edges(
    database_url: str, tmp_path: Path
) -> None:
    server = Server(database_url, tmp_path, {"TURNSTREAM_MODEL": "demo", "TURNSTREAM_DEMO_DELAY": "0.02"})
    await server.start()
    async with connection_to(database_url) as rows, httpx2.AsyncClient(trust_env=False, timeout=60) as other:
        async with Client(server.url) as api:
            request = said("/say " + "tide " * 60)
            trigger = await api.json("POST", "/api/triggers", 201, json={"name": "builds", "request": request})

        async def send(id: str) -> dict[str, Any]:
            headers = headers_of(trigger["secret"], id, int(time.time()), b"{}")
            answer = await other.post(server.url + trigger["path"], content=b"{}", headers=headers)
            assert answer.status_code == 202, answer.text
            turn: dict[str, Any] = answer.json()
            return turn

        async def lost(id: str, table: str) -> None:
            """Kills the server of a message before its write to the table."""
            async with held(database_url, table):
                sending = asyncio.create_task(send(id))
                await until(lambda: rows.fetchval(LOCKED))
                await server.kill()
                with pytest.raises(httpx2.HTTPError):
                    await sending

        try:
            await lost("before the rows of the turn", "turns")
            assert await rows.fetchval("SELECT count(*) FROM turns") == 0
            await server.start()
            first = await send("before the rows of the turn")
            await ended(rows, 1)

            await lost("before the row of the run", "schedule_runs")
            await server.start()
            await send("before the row of the run")
            await ended(rows, 2)

            began = await send("in the middle of the answer")
            await until(lambda: rows.fetchval(STATUS, "running"))
            await server.kill()
            await server.start()
            assert await send("in the middle of the answer") == began
            await ended(rows, 3)

            over = await send("before the end of the run")
            async with held(database_url, "schedule_runs"):
                await until(lambda: rows.fetchval(f"SELECT ({STATUS}) = 4", "complete"))
                await server.kill()
            await server.start()
            assert await send("before the end of the run") == over
            await ended(rows, 4)
            assert await send("before the rows of the turn") == first
        finally:
            await server.close()
        counts = await rows.fetchrow(COUNTS)
        assert counts is not None
        assert tuple(counts) == (4, 4, 4, 4, 4)


async def ended(rows: "asyncpg.Connection[Any]", number: int) -> None:
    await until(lambda: rows.fetchval("SELECT count(*) = $1 FROM schedule_runs WHERE state = 'ended'", number))
