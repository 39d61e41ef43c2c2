"""A replica whose clock is ten minutes ahead or behind runs beside a replica with a correct clock. Another test steps
the clock of Postgres back.
"""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.model import Call, Gate, Model, Step, Use, model_api
from tests.faults.postgres import Postgres
from tests.faults.replicas import replicas_with
from tests.faults.wrong_clock import clock_off_by
from tests.support.effort import FULL
from tests.support.http_client import Client, Json, said, turn_url
from turnstream.extensions.embedded import cluster
from turnstream.extensions.feed.reader import FeedCursor

pytestmark = [pytest.mark.timeout(300), pytest.mark.needs("a C compiler")]

# A test takes at most a minute, even on a loaded machine. So five minutes tell a correct clock from one that is ten
# minutes wrong.
NEAR = timedelta(minutes=5)
# The lease is so long that it does not expire on a loaded machine.
SETTINGS = {"TURNSTREAM_CONCURRENT_TURNS": "1", "TURNSTREAM_LEASE": "30"}


def script(call: Call) -> Iterable[Step]:
    if call.words == "ask" and call.rounds == 0:
        return ("I ask. ", Use("ask", {}))
    return ("It ", Gate("middle"), "ends.")


@pytest.mark.parametrize("seconds", [600, -600] if FULL else [600])
async def test_a_wrong_clock_neither_reorders_the_queue_nor_falsifies_times(
    database_url: str, tmp_path: Path, seconds: int
) -> None:
    async with (
        model_api(script) as model,
        replicas_with(database_url, tmp_path, model, SETTINGS, SETTINGS | clock_off_by(seconds)) as (
            right,
            wrong,
        ),
    ):
        connection = await asyncpg.connect(database_url)
        now: datetime = await connection.fetchval("SELECT now()")
        await connection.close()
        async with Client(right.url) as of_right, Client(wrong.url) as of_wrong:
            turns = await _run_in_the_order_of_the_queue(model, of_wrong, of_right)
            for turn in turns:
                await _check_times(of_right, turn, now)
            for client in (of_right, of_wrong):  # each client's replica has run at least one of the first two turns
                assert 0 < await _seconds_to_first_deltas(client) < NEAR.total_seconds()
            await _asks_and_tokens_expire_in_time(of_wrong, of_right, now)


async def _run_in_the_order_of_the_queue(model: Model, of_wrong: Client, of_right: Client) -> list[Json]:
    """Posts turns to replicas that run one turn each. Later turns wait, and run in the order of their POSTs."""
    running = [await _post(client, name) for client, name in ((of_wrong, "first"), (of_right, "second"))]
    await model.until_reached("middle", 2)
    names = ("a", "b", "c", "d")
    waiting = [await _post(client, name) for client, name in zip((of_wrong, of_right) * 2, names, strict=True)]
    model.open("middle", ["first"])  # the replica of this turn continues with the waiting turns
    for count, name in enumerate(names, 3):
        await model.until_reached("middle", count)
        assert model.calls[-1].words == name
        model.open("middle", [name])
    model.open("middle", ["second"])
    return running + waiting


async def _check_times(client: Client, turn: Json, now: datetime) -> None:
    """Checks that the times in the rows, and in the id, come from the clock of Postgres."""
    await client.events(f"{turn_url(turn)}/stream")
    (round,) = (await client.json("GET", turn_url(turn)))["rounds"]
    for name in ("started_at", "first_delta_at", "sealed_at"):
        assert abs(datetime.fromisoformat(round[name]) - now) < NEAR, name
    made = datetime.fromtimestamp((UUID(turn["id"]).int >> 80) / 1000, UTC)
    assert abs(made - now) < NEAR


async def _seconds_to_first_deltas(client: Client) -> float:
    metrics = (await client.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
    return next(sample.value for sample in samples if sample.name == "turnstream_first_delta_seconds_sum")


async def _asks_and_tokens_expire_in_time(of_wrong: Client, of_right: Client, now: datetime) -> None:
    turn = await _post(of_wrong, "ask", tools=["ask"])
    async with of_wrong.follow(f"{turn_url(turn)}/stream") as events:
        await anext(event async for event in events if event.name == "action_required")
    (call,) = (await of_wrong.json("GET", "/api/waiting"))["calls"]
    token = await of_wrong.json("POST", "/api/tokens", json={"seconds": 300})
    for expires_at in (call["expires_at"], token["expires_at"]):
        assert abs(datetime.fromisoformat(expires_at) - now - timedelta(seconds=300)) < NEAR
    for client in (of_wrong, of_right):
        await client.json("GET", "/api/chats", headers={"Authorization": f"Bearer {token['token']}"})


async def _post(client: Client, words: str, **body: Any) -> Json:
    posted: Json = (await client.json("POST", "/api/turns", 201, json={**said(words), **body}))["assistant_turn"]
    return posted


async def test_a_clock_of_postgres_that_is_set_back_hides_nothing_from_a_feed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres = Postgres(tmp_path)
    await _start_with_clock_off_by(600, postgres, monkeypatch)
    try:
        async with (
            model_api(script) as model,
            replicas_with(postgres.url, tmp_path, model, {"TURNSTREAM_LEASE": "3"}) as (replica,),
            Client(replica.url) as client,
        ):
            before = await _cursor(client)
            await postgres.stop()
            await _start_with_clock_off_by(0, postgres, monkeypatch)  # ten minutes back
            await _until_ready(client)
            while not await _is_noticed(postgres, client):  # noqa: ASYNC110, the next renewals notice it
                await asyncio.sleep(0.05)
            during = await _cursor(client)
            made = await client.json("POST", "/api/chats", 201, json={"title": "Made in the period"})
            await _check_feed(client, before, during, made)
            await postgres.stop()
            await _start_with_clock_off_by(1200, postgres, monkeypatch)  # later than any time that the clock has shown
            await _until_ready(client)
            await _check_feed(client, before, during, made)
    finally:
        await postgres.leave()


async def _start_with_clock_off_by(seconds: int, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts Postgres with a wrong clock. The program that starts Postgres clears the environment, so a replacement
    program sets the clock.
    """
    clock = " ".join(f"{name}={value}" for name, value in clock_off_by(seconds).items())
    starter = postgres.folder.with_name(f"start-with-clock-off-by-{seconds}")
    starter.write_text(f'#!/bin/sh\nexec env {clock} {cluster.program("pg_ctl")} "$@"\n')
    starter.chmod(0o755)
    with monkeypatch.context() as programs:
        found = cluster.program
        programs.setattr(cluster, "program", lambda name: str(starter) if name == "pg_ctl" else found(name))
        await postgres.start()


async def _check_feed(client: Client, before: str, during: str, made: Json) -> None:
    async with client.follow("/api/stream", before) as events:
        assert (await anext(events)).name == "reset"
    async with client.follow("/api/stream", during) as events:
        event = await anext(events)
        assert (event.name, event.data["id"]) == ("chat", made["id"])


async def _cursor(client: Client) -> str:
    cursor: str = (await client.json("GET", "/api/chats"))["cursor"]
    return cursor


async def _until_ready(client: Client) -> None:
    while (await client.get("/readyz")).status_code != 200:  # noqa: ASYNC110, it has no event
        await asyncio.sleep(0.05)


async def _is_noticed(postgres: Postgres, client: Client) -> bool:
    async with postgres.connected() as connection:
        began = await connection.fetchval("SELECT began FROM clock_steps")
    return began is not None and FeedCursor.parse(await _cursor(client)).time == began
