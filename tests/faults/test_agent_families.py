"""A family of three levels with fifty agents on two replicas, which are killed again and again.

FAMILY_SECONDS=60 is the long run: for so many seconds, one of ten replicas is killed each second. With fewer replicas,
a turn would lose its replica more than ten times, and would be given up. The run also allows more recoveries without
progress, because a replica may die before it has stored any text.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.extensions.agents.families import family, report
from tests.support.http_client import Client, said
from tests.support.locks import connection_to
from tests.support.server_process import Server
from turnstream.domain.identity import LOCAL_OWNER
from turnstream.storage.database import connect
from turnstream.storage.owners.accounts import Accounts

SECONDS = int(os.environ.get("FAMILY_SECONDS", "0"))

pytestmark = [pytest.mark.extensions("agents", "demo"), pytest.mark.timeout(600 + 10 * SECONDS)]

LEADS, SCOUTS, WORDS = 5, 9, 40
MOST_RECOVERIES = 100
BUDGET = 10_000_000  # tokens, more than the family uses
TOOLS = """
[agents.scout]
description = "Scouts."
prompt = "Scout."

[agents.lead]
description = "Leads scouts."
prompt = "Lead."
tools = ["scout"]
max_rounds = 20
"""
ROUNDS = "SELECT count(*) FROM rounds"
OPEN = "SELECT count(*) FROM turns WHERE role = 'assistant' AND ended_at IS NULL"
CHILDREN = "turns JOIN chats ON chat_id = chats.id WHERE of_turn IS NOT NULL AND role = 'assistant'"
FAILED = (
    "SELECT name, attempt, handle IS NULL, outcome::text FROM jobs WHERE (outcome #>> '{outcome,is_error}')::boolean"
)
NOT_CHARGED = """
    SELECT count(*) FROM rounds LEFT JOIN charges
        ON charges.turn_id = rounds.turn_id AND call = rounds.number || '.' || rounds.attempt
    WHERE call IS NULL
"""
OUTSIDE = "SELECT count(*) FROM charges WHERE turn_id <> $1 AND root_turn IS DISTINCT FROM $1"
AGE = "UPDATE reservations SET reserved_at = reserved_at - interval '3 minutes'"


@pytest.fixture
async def servers(database_url: str, tmp_path: Path) -> AsyncIterator[Sequence[Server]]:
    file = tmp_path / "tools.toml"
    file.write_text(TOOLS)
    settings = {"TURNSTREAM_TOOLS_FILE": str(file), "TURNSTREAM_DEMO_DELAY": "0.05", "TURNSTREAM_MODEL": "demo"}
    replicas = [Server(database_url, tmp_path, settings) for _ in range(10 if SECONDS else 2)]
    await asyncio.gather(*(server.start() for server in replicas))
    yield replicas
    for server in replicas:
        await server.close()


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    async with connection_to(database_url) as connection:
        yield connection


async def kill_after_rounds(servers: Sequence[Server], rows: "asyncpg.Connection[Any]") -> int:
    """Kills the replicas in turn, each after four rounds, until all turns have ended."""
    kills = 0
    while await rows.fetchval(OPEN):
        before = await rows.fetchval(ROUNDS)
        while await rows.fetchval(ROUNDS) < before + 4 and await rows.fetchval(OPEN):  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.01)
        if await rows.fetchval(OPEN):
            await servers[kills % 2].kill()
            await servers[kills % 2].start()
            kills += 1
    return kills


async def kill_each_second(servers: Sequence[Server], rows: "asyncpg.Connection[Any]") -> int:
    kills, starts = 0, dict[Server, asyncio.Task[None]]()
    async with asyncio.TaskGroup() as group:
        while kills < SECONDS and await rows.fetchval(OPEN):
            server, due = servers[kills % len(servers)], monotonic() + 1
            if (start := starts.get(server)) is not None:
                await start
            await server.kill()
            starts[server] = group.create_task(server.start())
            kills += 1
            await asyncio.sleep(due - monotonic())
    return kills


async def test_fifty_agents_of_three_levels_work_once_and_share_a_budget_over_kills(
    servers: Sequence[Server],
    rows: "asyncpg.Connection[Any]",
    database_url: str,
    record_property: Callable[[str, object], None],
) -> None:
    words = family(LEADS, SCOUTS, WORDS)
    async with Client(servers[0].url) as api:
        limits = {"budget_tokens": BUDGET} | ({"max_recoveries": MOST_RECOVERIES} if SECONDS else {})
        asked = {**said(words), "limits": limits}
        exchange = await api.json("POST", "/api/turns", 201, json=asked)
    begin, kills = monotonic(), await (kill_each_second if SECONDS else kill_after_rounds)(servers, rows)
    while await rows.fetchval(OPEN):  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.05)
    record_property("kills in a family of fifty agents", kills)
    record_property("seconds of the family", round(monotonic() - begin, 1))
    record_property("the most deaths of a turn", await rows.fetchval("SELECT max(deaths) FROM turns"))
    record_property("the most runs of a job", await rows.fetchval("SELECT max(attempt) FROM jobs"))
    assert [tuple(row) for row in await rows.fetch(FAILED)] == []
    assert kills > 2, "each of both, and one again"
    answer, root = exchange["assistant_turn"], UUID(exchange["assistant_turn"]["id"])
    async with Client(servers[0].url) as api:
        turn = await api.json("GET", f"/api/chats/{answer['chat_id']}/turns/{answer['id']}")
    results = [block for block in turn["blocks"] if block["type"] == "tool_result"]
    assert turn["status"] == "complete"
    assert sorted((block["is_error"], block["text"]) for block in results) == [
        (False, report(lead, SCOUTS, WORDS)) for lead in range(LEADS)
    ]
    ends = await rows.fetch(f"SELECT status, count(*) AS number FROM {CHILDREN} GROUP BY status")
    assert [tuple(row) for row in ends] == [("complete", LEADS * (1 + SCOUTS))]
    assert await rows.fetchval("SELECT count(*) FROM jobs WHERE settled_at IS NULL") == 0
    await rows.execute(AGE)  # as if the reservations of killed processes were old
    async with connect(database_url, size=1) as database:
        accounts = Accounts(database)
        async for _ in accounts.sweep():
            pass
        used = await accounts.family_use(LOCAL_OWNER, root)
    assert await rows.fetchval("SELECT count(*) FROM reservations") == 0
    assert (await rows.fetchval(NOT_CHARGED), await rows.fetchval(OUTSIDE, root)) == (0, 0)
    charged = "SELECT sum(input_tokens + output_tokens + cache_read_tokens + cache_write_tokens) FROM charges"
    assert used.tokens == await rows.fetchval(charged)
