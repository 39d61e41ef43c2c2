"""Secrets from before the server had a master key: a command encrypts the stored secrets in steps, and turns still use
the secrets.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import httpx2
import pytest
from click.testing import CliRunner

from tests.extensions.http_tools.test_http_tools import Service
from tests.extensions.http_tools.test_http_tools import serving as serving_tools
from tests.support.harness import Harness
from tests.support.http_server import Server, serving
from tests.support.owner_rows import rows_of
from turnstream.cli import commands
from turnstream.extensions.keys.old_secrets import COLUMNS, encrypt
from turnstream.kit.ids import new_id
from turnstream.libraries.providers.anthropic.parameters import PARAMETERS
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys, new_master_key
from turnstream.llm.models.catalog import ProviderModels
from turnstream.llm.parameters import COMMON
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.runs.queue import Queue
from turnstream.tools.secrets import SEALED

pytestmark = pytest.mark.extensions("http_tools", "keys", "schedules")

WORDS = ("weather-5f0c", "tool-5f0c", "header-5f0c", "server-5f0c")
MCP = {
    "type": "mcp",
    "server_url": "https://crm.test/mcp",
    "authorization": WORDS[1],
    "headers": {"x-key": WORDS[2]},
}
SERVERS = [{"type": "url", "url": "https://crm.test/mcp", "name": "crm", "authorization_token": WORDS[3]}]


def answer(request: ModelRequest) -> Reply:
    """Calls the tool once, and answers after the result."""
    called = any(block.type == "tool_result" for block in request.messages[-1].blocks)
    return message_of(text("Rain.")) if called else message_of(tool_use("weather", {}, f"call_{new_id()}"))


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with AsyncExitStack() as stack:
        service = await serving_tools(stack)
        service.answer("/", text="Rain.")
        yield service


def served(url: str, key: str | None, provider: ScriptedProvider) -> Any:
    parameters = (*COMMON, *(each for each in PARAMETERS if each.name == "mcp_servers"))
    return serving(
        url,
        offers=[ProviderModels(provider, ["m"], (), parameters)],
        model="m",
        master_key=key,
        request_tools_allow="127.0.0.1",
        provider_tools_allow="mcp",
        params_allow="mcp_servers",
    )


def options(service: Service) -> dict[str, Any]:
    """Returns all options of a request that can contain a secret."""
    weather = {
        "type": "http",
        "name": "weather",
        "description": "Outside.",
        "input_schema": {"type": "object"},
        "url": service.url(),
        "headers": {"authorization": f"Bearer {WORDS[0]}"},
    }
    return {"tools": [weather, {"type": "provider", "definition": MCP}], "params": {"mcp_servers": SERVERS}}


def client_for(server: Server, token: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, headers={"authorization": f"Bearer {token}"}, timeout=150)


async def ended(client: httpx2.AsyncClient, path: str, **body: Any) -> str:
    """Posts a message and waits for the end of its turn. Returns the chat."""
    said = {"blocks": [{"type": "text", "text": "How is it?"}], "model": "m", **body}
    answer = await client.post(path, json=said)
    assert answer.status_code == 201, answer.text
    async with client.stream("GET", answer.json()["stream_url"]) as events:
        async for _ in events.aiter_bytes():
            pass
    chat: str = answer.json()["assistant_turn"]["chat_id"]
    return f"/api/chats/{chat}/turns"


async def fill(server: Server, service: Service) -> tuple[list[str], str]:
    """Stores secrets in every option. Returns the chats that have secrets, and a token whose fixed options have
    secrets.
    """
    async with client_for(server, await server.token("ada")) as client:
        given = options(service)
        chats = [await ended(client, "/api/turns", **given)]
        chats.append(await ended(client, "/api/turns", chat={"settings": given}))
        made = await client.post("/api/chats", json={"settings": given})
        chats.append(f"/api/chats/{made.json()['id']}/turns")
        fixed = await client.post("/api/tokens", json={"fixed": given})
        assert fixed.status_code < 300, fixed.text
        return chats, fixed.json()["token"]


def found_in(rows: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Returns, for each table, the secrets that the table contains in plain text."""
    return {(table, word) for table, lines in rows.items() for word in WORDS if word in json.dumps(lines)}


async def test_secrets_from_before_are_encrypted_and_still_sent(database_url: str, service: Service) -> None:
    provider, key = ScriptedProvider(answer), new_master_key()
    async with served(database_url, None, provider) as server:
        chats, fixed = await fill(server, service)
    # An earlier version allowed secrets in schedules.
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "INSERT INTO schedules (id, owner, name, request, every, zone, missed, grace, next_at, paused)"
        " VALUES ($1, 'ada', 'daily', $2, 60, 'UTC', 'skip', 1, now(), 'person')",
        new_id(),
        json.dumps({"blocks": [], **options(service)}),
    )
    await connection.close()
    before = await rows_of(database_url)
    assert {table for table, _ in found_in(before)} == {column.table for column in COLUMNS}, "each has some"
    assert {word for _, word in found_in(before)} == {*WORDS}

    printed = await call(database_url, key, "encrypt")
    assert "Encrypted the secrets of" in printed
    assert "turns: 4 rows read, 2 encrypted" in printed
    rows = await rows_of(database_url)
    assert found_in(rows) == set()
    assert "Encrypted the secrets of 0 rows" in await call(database_url, key, "encrypt")
    assert {table for table in rows if SEALED in json.dumps(rows[table])} == {column.table for column in COLUMNS}

    service.requests.clear()
    provider.requests.clear()
    async with served(database_url, key, provider) as server:
        async with client_for(server, await server.token("ada")) as client:
            for chat in chats:
                await ended(client, chat)
        async with client_for(server, fixed) as client:
            await ended(client, "/api/turns")
    assert [headers["authorization"] for _, _, headers, _ in service.requests] == [f"Bearer {WORDS[0]}"] * 4
    assert len(provider.requests) == 8
    for request in provider.requests:
        assert [json.loads(each) for each in request.provider_tools] == [MCP]
        assert request.params.get("mcp_servers", SERVERS) == SERVERS
    assert sum("mcp_servers" in request.params for request in provider.requests) == 6, "those of the turn end with it"
    assert found_in(await rows_of(database_url)) == set()


async def test_a_chat_continued_in_memory_copies_no_plain_secret(database_url: str, service: Service) -> None:
    provider, key = ScriptedProvider(answer), new_master_key()
    async with served(database_url, None, provider) as server:
        chats, _ = await fill(server, service)
    async with served(database_url, key, provider) as server, client_for(server, await server.token("ada")) as client:
        await ended(client, chats[0])
        assert "Encrypted the secrets of" in await call(database_url, key, "encrypt")
        await ended(client, chats[0])
    assert found_in(await rows_of(database_url)) == set()


async def test_the_next_call_completes_an_interrupted_one(database_url: str, service: Service) -> None:
    provider, masters = ScriptedProvider(answer), MasterKeys.read(new_master_key())
    async with served(database_url, None, provider) as server:
        await fill(server, service)
        database = server.services.storage.database
        connection = await asyncpg.connect(database_url)
        # this replica encrypts nothing and has no key, so its row would stop the command
        await connection.execute("DELETE FROM replicas")
        await connection.close()
        keys, done = OwnerKeys(database, masters, required=True), Counter[str]()
        async for step in encrypt(database, keys):
            done[step.table] += step.encrypted
            if step.table == "chats":
                break
        assert done == {"browser_tokens": 1, "chats": 2}
        async for step in encrypt(database, keys):
            done[step.table] += step.encrypted
    assert +done == {"browser_tokens": 1, "chats": 2, "tool_sets": 1, "turns": 2}
    assert found_in(await rows_of(database_url)) == set()


async def test_the_keys_of_replicas_come_first(harness: Harness) -> None:
    key = new_master_key()
    await Queue(harness.database, new_id(), "old:1", session=1).renew_lease(60)
    for command in ("encrypt", "rotate"):
        refused = await call(harness.url, key, command, status=1)
        assert "The replica old:1 lacks the first master key" in refused


async def test_the_commands_report_their_results(harness: Harness) -> None:
    old, new, lost = new_master_key(), new_master_key(), new_master_key()
    await OwnerKeys(harness.database, MasterKeys.read(old)).find_or_create("ada")
    first = MasterKeys.read(new).first.hex()
    shown = await call(harness.url, f"{new},{old}")
    assert f"the first is {first}" in shown
    assert "wrapped by an earlier master key: 1\n" in shown
    rotated = await call(harness.url, f"{new},{old}", "rotate")
    assert "1 of 1 keys are wrapped by the first master key" in rotated
    assert f"is wrapped by the master key {first}" in rotated
    assert "wrapped by an earlier master key: 0\n" in await call(harness.url, new, "status")
    assert "not in TURNSTREAM_MASTER_KEY: 1\n" in await call(harness.url, lost, "status")
    failed = await call(harness.url, lost, "rotate", status=1)
    assert "The keys of 1 owners cannot be unwrapped (ada)" in failed
    assert "TURNSTREAM_MASTER_KEY must be set" in await call(harness.url, None, "status", status=1)


def test_every_column_that_a_request_fills_is_known() -> None:
    """`without` lists the JSON columns that cannot contain a secret of a tool. A new column must either be added to the
    list or be encrypted.
    """
    columns = {f"{table.name}.{column}" for table in ALL_TABLES.values() for column in table.columns}
    json_columns = {name for name in columns if is_json(name)}
    known = {f"{column.table}.{column.name}" for column in COLUMNS}
    without = {
        *("activity.turns", "asks.answer", "asks.question", "audit.detail", "blocks.client_data", "blocks.data"),
        *("blocks.notes", "grants.when", "jobs.checkpoint", "jobs.handle", "jobs.outcome", "replicas.configuration"),
        *("rounds.data", "rounds.usage", "steers.blocks", "tool_cache.client_data", "tool_calls.preliminary"),
        *("turns.error", "turns.usage", "waiting_webhooks.calls", "stopped_jobs.handle", "provider_rates.state"),
        "sign_ins.tools",
    }
    assert known <= json_columns
    assert json_columns - known - without == set()


def is_json(name: str) -> bool:
    table, column = name.split(".")
    return ALL_TABLES[table].columns[column].type == "json"


async def call(url: str, key: str | None, *arguments: str, status: int = 0) -> str:
    env = {**os.environ, "DATABASE_URL": url, "TURNSTREAM_MASTER_KEY": key}
    done = await asyncio.to_thread(CliRunner().invoke, commands, ["keys", *arguments], env=env)
    assert done.exit_code == status, (done.output, done.exception)
    return f"{done.output}{done.exception or ''}"
