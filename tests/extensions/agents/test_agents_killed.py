"""A server is killed at each step of an agent's call. Still, the agent runs once, and the calling turn ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.extensions.agents.families import calling, family, report
from tests.support.http_client import Client, said
from tests.support.locks import Locker, connection_to
from tests.support.server_process import Server
from turnstream.domain.turns import RecoveryPolicy

pytestmark = [pytest.mark.extensions("agents", "demo"), pytest.mark.timeout(180)]

TOOLS = """
[agents.scout]
description = "Scouts."
prompt = "Scout."

[agents.lead]
description = "Leads scouts."
prompt = "Lead."
tools = ["scout", "lead"]
"""
# While a test holds the lock, the transaction that posts the turn of an agent blocks halfway.
HALTS = """
CREATE FUNCTION halt() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END';
CREATE TRIGGER halted BEFORE UPDATE OF of_turn ON chats FOR EACH ROW EXECUTE FUNCTION halt();
"""
BEGIN = "SELECT pg_advisory_xact_lock(1)"
JOB = "SELECT FROM jobs FOR UPDATE"
PARENT = "SELECT FROM turns WHERE id = $1 FOR UPDATE"
CHILDREN = "SELECT count(*) FROM chats WHERE of_turn IS NOT NULL"
CHILD_TURNS = "turns JOIN chats ON chat_id = chats.id WHERE of_turn IS NOT NULL AND role = 'assistant'"
ENDED = f"SELECT count(*) FROM {CHILD_TURNS} AND ended_at IS NOT NULL"
ROUNDS = "SELECT count(*) FROM rounds"


@pytest.fixture
async def server(database_url: str, tmp_path: Path) -> AsyncIterator[Server]:
    file = tmp_path / "tools.toml"
    file.write_text(TOOLS)
    settings = {"TURNSTREAM_TOOLS_FILE": str(file), "TURNSTREAM_DEMO_DELAY": "0.01", "TURNSTREAM_MODEL": "demo"}
    running = Server(database_url, tmp_path, settings)
    await running.start()
    yield running
    await running.close()


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    async with connection_to(database_url) as connection:
        yield connection


@pytest.fixture
async def locker(database_url: str, rows: "asyncpg.Connection[Any]") -> AsyncIterator[Locker]:
    async with connection_to(database_url) as connection:
        yield Locker(connection, rows)


async def post(server: Server, words: str, policy: RecoveryPolicy = "continue") -> dict[str, Any]:
    async with Client(server.url) as api:
        asked = {**said(words), "limits": {"recovery": policy}}
        return dict(await api.json("POST", "/api/turns", 201, json=asked))


async def reached(rows: "asyncpg.Connection[Any]", question: str, number: int) -> None:
    while await rows.fetchval(question) < number:  # noqa: ASYNC110, Postgres sends no event
        await asyncio.sleep(0.005)


async def answer(server: Server, exchange: dict[str, Any]) -> dict[str, Any]:
    turn = exchange["assistant_turn"]
    async with Client(server.url) as api:
        await api.events(exchange["stream_url"])
        return dict(await api.json("GET", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}"))


@pytest.mark.parametrize("policy", [pytest.param("retry", marks=pytest.mark.full), "continue"])
@pytest.mark.parametrize(
    "edge", ["before the child", "before the handle", "in the child", "before the outcome", "after"]
)
async def test_after_a_kill_at_any_edge_the_agent_has_worked_once_and_the_turn_ends(
    server: Server,
    locker: Locker,
    rows: "asyncpg.Connection[Any]",
    database_url: str,
    edge: str,
    policy: RecoveryPolicy,
) -> None:
    words = calling("scout", "/long 30")
    await rows.execute(HALTS)
    match edge:
        case "before the child":
            async with locker.holding(BEGIN):
                exchange = await post(server, words, policy)
                await locker.waiting()
                await server.kill()
        case "before the handle":
            async with connection_to(database_url) as other, Locker(other, rows).holding("SELECT 1"):
                async with locker.holding(BEGIN):
                    exchange = await post(server, words, policy)
                    await locker.waiting()
                    await other.execute(JOB)
                await locker.waiting()
                assert await rows.fetchval(CHILDREN) == 1
                assert await rows.fetchval("SELECT count(*) FROM jobs WHERE handle IS NULL") == 1
                await server.kill()
        case "in the child":
            exchange = await post(server, words, policy)
            await reached(
                rows,
                f"{ROUNDS} WHERE turn_id IN (SELECT turns.id FROM {CHILD_TURNS})",
                1,
            )
            await server.kill()
        case "before the outcome":
            exchange = await post(server, words, policy)
            await reached(rows, CHILDREN, 1)
            async with locker.holding(PARENT, exchange["assistant_turn"]["id"]):
                await reached(rows, ENDED, 1)
                await locker.waiting()
                await server.kill()
        case _:
            exchange = await post(server, words, policy)
            await reached(rows, "SELECT count(*) FROM jobs WHERE settled_at IS NOT NULL", 1)
            await server.kill()
    await server.start()
    turn = await answer(server, exchange)
    assert turn["status"] == "complete"
    (result,) = [block["text"] for block in turn["blocks"] if block["type"] == "tool_result"]
    assert result.split() == [str(number) for number in range(1, 31)]
    assert await rows.fetchval(CHILDREN) == 1
    assert await rows.fetchval(ENDED) == 1


async def test_the_end_of_a_child_and_the_wake_up_of_its_call_are_one_transaction(
    server: Server, rows: "asyncpg.Connection[Any]"
) -> None:
    exchange = await post(server, calling("scout", "/long 2000"))
    await reached(rows, "SELECT count(*) FROM jobs WHERE handle IS NOT NULL AND replica IS NULL", 1)
    await server.kill()
    due = "SELECT due_at <= clock_timestamp() FROM jobs"
    assert await rows.fetchval(due) is False
    async with rows.transaction():
        await rows.execute(
            "UPDATE turns SET status = 'cancelled', stop_reason = 'cancelled', ended_at = now(), replica = NULL"
            f" WHERE id = (SELECT turns.id FROM {CHILD_TURNS})"
        )
        assert await rows.fetchval(due) is True
    await server.start()
    turn = await answer(server, exchange)
    (result,) = [block for block in turn["blocks"] if block["type"] == "tool_result"]
    assert (turn["status"], result["is_error"]) == ("complete", True)
    assert "did not end its work (cancelled)" in result["text"]


async def test_a_family_of_three_levels_survives_kills(server: Server, rows: "asyncpg.Connection[Any]") -> None:
    exchange = await post(server, family(3, 2, words=40))
    await reached(rows, "SELECT count(*) FROM jobs", 3)
    for _ in range(5):
        before = await rows.fetchval(ROUNDS)
        await reached(rows, ROUNDS, before + 1)
        await server.kill()
        await server.start()
    turn = await answer(server, exchange)
    assert turn["status"] == "complete"
    results = [block for block in turn["blocks"] if block["type"] == "tool_result"]
    assert sorted((block["is_error"], block["text"]) for block in results) == [
        (False, report(lead, 2, 40)) for lead in range(3)
    ]
    assert await rows.fetchval(CHILDREN) == 9
    assert await rows.fetchval(f"{ENDED} AND status = 'complete'") == 9
