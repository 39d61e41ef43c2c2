"""Schedules over HTTP: refused requests, runs, missed ticks, and failures."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx2
import pytest
from structlog.testing import capture_logs

from tests.support.http_server import MODEL, Server, serving
from tests.support.pages import blocks
from turnstream.domain.errors import PermanentError

ASK = {"blocks": [{"type": "text", "text": "What is new?"}]}
BODY = {"name": "news", "request": ASK, "every": 3600}


@pytest.fixture
async def own(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url, schedule_interval=1, schedules_per_owner=2, schedule_failures=2) as server:
        yield server


async def _create(client: httpx2.AsyncClient, **changes: Any) -> dict[str, Any]:
    response = await client.post("/api/schedules", json={**BODY, **changes})
    assert response.status_code == 201, response.text
    created: dict[str, Any] = response.json()
    return created


async def _runs(client: httpx2.AsyncClient, id: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = (await client.get(f"/api/schedules/{id}/runs")).json()["runs"]
    return runs


async def _over(client: httpx2.AsyncClient, id: str, count: int) -> list[dict[str, Any]]:
    """Waits until `count` runs have ended. Returns the ended runs, newest first."""
    while True:
        runs = [run for run in await _runs(client, id) if run["state"] not in {"pending", "started"}]
        if len(runs) >= count:
            return runs
        await asyncio.sleep(0.05)


async def _logged(logs: list[Any], event: str) -> list[Any]:
    while True:
        if found := [each for each in logs if each["event"] == event]:
            return found
        await asyncio.sleep(0.05)


async def _put_back(url: str, id: str, seconds: float) -> None:
    """Moves the next tick into the past, as if all servers had paused or the clock of Postgres had jumped forward."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "UPDATE schedules SET next_at = next_at - make_interval(secs => $2) WHERE id = $1", id, seconds
        )
    finally:
        await connection.close()


async def test_a_tick_posts_one_turn_in_a_chat_of_its_own(client: httpx2.AsyncClient, database_url: str) -> None:
    schedule = await _create(client, every=3600, grace=60)
    await _put_back(database_url, schedule["id"], 3601)
    (run,) = await _over(client, schedule["id"], 1)
    assert run["state"] == "ended"
    turn = (await client.get(f"/api/chats/{run['chat']}/turns/{run['turn']}")).json()
    assert turn["status"] == "complete"
    assert (await client.get(f"/api/chats/{run['chat']}")).json()["title"] == "news"


async def test_ticks_of_one_chat_follow_each_other_and_run_now_adds_one(
    client: httpx2.AsyncClient, database_url: str
) -> None:
    chat = (await client.post("/api/chats", json={})).json()["id"]
    schedule = await _create(client, chat=chat, every=60, grace=3600)
    await _put_back(database_url, schedule["id"], 181)
    runs = await _over(client, schedule["id"], 3)
    assert {run["chat"] for run in runs} == {chat}
    assert len({run["turn"] for run in runs}) == len(runs) >= 3
    assert (await client.post(f"/api/schedules/{schedule['id']}/run")).status_code == 202
    assert len(await _over(client, schedule["id"], len(runs) + 1)) == len(runs) + 1
    assert (await client.delete(f"/api/chats/{chat}")).status_code == 200
    assert (await client.get(f"/api/schedules/{schedule['id']}")).status_code == 404


async def test_a_clock_that_was_set_back_repeats_no_tick(client: httpx2.AsyncClient, database_url: str) -> None:
    schedule = await _create(client, every=60, grace=3600)
    await _put_back(database_url, schedule["id"], 121)
    before = await _over(client, schedule["id"], 2)
    await _put_back(database_url, schedule["id"], 120)
    while True:
        moved = (await client.get(f"/api/schedules/{schedule['id']}")).json()
        if moved["next_at"] >= schedule["next_at"][:17] and moved["next_at"] > before[0]["tick"]:
            break
        await asyncio.sleep(0.05)
    assert [run["tick"] for run in await _runs(client, schedule["id"])] == [run["tick"] for run in before]


@pytest.mark.parametrize(
    ("missed", "states"), [("run_once", [("ended", 9)]), ("skip", []), ("report", [("missed", 10)])]
)
async def test_missed_ticks_are_run_once_or_skipped_or_reported(
    client: httpx2.AsyncClient, database_url: str, missed: str, states: list[tuple[str, int]]
) -> None:
    schedule = await _create(client, missed=missed, every=3600, grace=1)
    with capture_logs() as logs:
        await _put_back(database_url, schedule["id"], 36_000 + 5)
        found = await _logged(logs, "schedule.missed")
    assert found == [{"event": "schedule.missed", "log_level": "warning", "schedule": schedule["id"], "ticks": 10}]
    assert [(run["state"], run["missed"]) for run in await _over(client, schedule["id"], len(states))] == states


async def test_failures_in_a_row_pause_a_schedule(own: Server, client: httpx2.AsyncClient, database_url: str) -> None:
    broken = own.scripts.model([PermanentError("invalid", "no")], [PermanentError("invalid", "no")])
    schedule = await _create(client, every=60, grace=3600, request={**ASK, "model": broken})
    with capture_logs() as logs:
        await _put_back(database_url, schedule["id"], 121)
        await _logged(logs, "schedule.paused")
    paused = (await client.get(f"/api/schedules/{schedule['id']}")).json()
    assert (paused["paused"], paused["failures"]) == ("failures", 2)
    assert {run["state"] for run in await _runs(client, schedule["id"])} == {"failed"}
    again = {**BODY, "every": 60, "request": {**ASK, "model": MODEL}}
    resumed = (await client.put(f"/api/schedules/{schedule['id']}", json=again)).json()
    assert (resumed["paused"], resumed["failures"]) == (None, 0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"every": 0.5}, "every"),
        ({"cron": "* * * * *"}, "cron"),
        ({"every": None}, "cron"),
        ({"every": None, "cron": "what"}, "cron"),
        ({"zone": "Mars/Olympus", "every": None, "cron": "* * * * *"}, "zone"),
        ({"missed": "perhaps"}, "missed"),
        ({"grace": 0}, "grace"),
        ({"request": {**ASK, "model": "nobody/knows"}}, "request.model"),
        ({"request": {}}, "request.blocks"),
        ({"request": {"blocks": [{"type": "text", "text": "x" * 100_001}]}}, "request"),
    ],
)
async def test_a_wrong_schedule_is_refused_with_its_field(
    client: httpx2.AsyncClient, changes: dict[str, Any], field: str
) -> None:
    response = await client.post("/api/schedules", json={**BODY, **changes})
    assert response.status_code == 422, response.text
    assert field in response.text
    assert (await client.get("/api/schedules")).json() == {"schedules": []}


async def test_an_owner_has_so_many_schedules_and_no_other_owner_sees_them(own: Server) -> None:
    ada, bob = [
        httpx2.AsyncClient(
            base_url=own.url, trust_env=False, headers={"Authorization": f"Bearer {await own.token(name)}"}
        )
        for name in ("ada", "bob")
    ]
    async with ada, bob:
        first, _ = [await _create(ada) for _ in range(2)]
        assert (await ada.post("/api/schedules", json=BODY)).status_code == 429
        for method, path in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/runs"), ("POST", "/run")):
            answer = await bob.request(
                method, f"/api/schedules/{first['id']}{path}", json=BODY if method == "PUT" else None
            )
            assert answer.status_code == 404
        assert (await bob.get("/api/schedules")).json() == {"schedules": []}
        assert (await ada.delete(f"/api/schedules/{first['id']}")).status_code == 200
        await _create(ada)


async def test_the_schedule_of_the_page_is_accepted(own: Server, client: httpx2.AsyncClient) -> None:
    (text,) = blocks("docs/schedules.md", "Schedules", "json")
    example = json.loads(text)
    created = await client.post("/api/schedules", json=example)
    assert created.status_code == 201
    assert created.json()["zone"] == "Europe/Berlin"


async def test_a_restricted_credential_makes_no_schedule(own: Server) -> None:
    token = await own.token("ada")
    async with httpx2.AsyncClient(base_url=own.url, trust_env=False) as client:
        strong = {"Authorization": f"Bearer {token}"}
        fixed = {"fixed": {"system_prompt": "Be brief."}}
        weak = (await client.post("/api/tokens", json=fixed, headers=strong)).json()["token"]
        answer = await client.post("/api/schedules", json=BODY, headers={"Authorization": f"Bearer {weak}"})
    assert answer.status_code == 403, answer.text


@pytest.mark.parametrize(
    ("secret", "field"),
    [
        ({"tools": [{"type": "provider", "definition": {"type": "mcp", "authorization": "tok"}}]}, "request.tools"),
        ({"params": {"mcp_servers": [{"authorization_token": "tok"}]}}, "request.params.mcp_servers"),
    ],
)
async def test_a_schedule_keeps_no_secret(client: httpx2.AsyncClient, secret: Any, field: str) -> None:
    request: Any = BODY["request"]
    body = {**BODY, "request": {**request, **secret}}
    answer = await client.post("/api/schedules", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field
