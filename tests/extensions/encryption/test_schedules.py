"""Messages of schedules are encrypted like messages of users."""

import asyncio
from typing import Any

import pytest

from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.domain.errors import Conflict
from turnstream.extensions.encryption.codec import SealingCodec
from turnstream.extensions.encryption.old_contents import change_contents
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.scripted import message_of, text
from turnstream.storage.contents import SCHEDULES
from turnstream.storage.database import Statement

pytestmark = pytest.mark.extensions("encryption", "schedules")

GET_REQUESTS = Statement("SELECT request::text AS request FROM schedules ORDER BY created_at")
GET_RUN_ERRORS = Statement("SELECT state, error FROM schedule_runs")
WORD = "tide-77aa"


async def made(server: Server, client: Client, **changes: Any) -> str:
    model = server.scripts.model(message_of(text("Ebb.")), message_of(text("Flow.")))
    request = {"blocks": [{"type": "text", "text": f"When is the {WORD}?"}], "model": model}
    body = {"name": "daily", "cron": "0 7 * * *", "zone": "UTC", "request": request, **changes}
    schedule = await client.json("POST", "/api/schedules", 201, json=body)
    assert schedule["request"]["blocks"][0]["text"] == f"When is the {WORD}?"
    id: str = schedule["id"]
    return id


async def run_of(client: Client, id: str) -> dict[str, Any]:
    """Waits for the end of the first run of a schedule. Returns the run."""
    while True:
        listed = (await client.json("GET", f"/api/schedules/{id}/runs"))["runs"]
        if listed and listed[0]["state"] in {"ended", "failed"}:
            run: dict[str, Any] = listed[0]
            return run
        await asyncio.sleep(0.05)


async def test_the_message_of_a_schedule_is_encrypted_and_posted(database_url: str) -> None:
    async with (
        serving(database_url, master_key=new_master_key(), encrypt_texts=True) as server,
        Client(server.url) as client,
    ):
        id, database = await made(server, client), server.services.storage.database
        (row,) = await database.rows(GET_REQUESTS)
        assert WORD not in row["request"]
        listed = await client.json("GET", "/api/schedules")
        assert WORD in str(listed)
        await client.json("POST", f"/api/schedules/{id}/run", 202)
        run = await run_of(client, id)
        turns = await client.json("GET", f"/api/chats/{run['chat']}/turns")
        assert WORD in str(turns)
        plain = SealingCodec(database.codec._keys, seals=False)  # type: ignore[union-attr]
        for codec, sealed in ((plain, False), (database.codec, True)):
            assert codec is not None
            steps = [step async for step in change_contents(database, codec, sealed=sealed)]
            assert sum(step.changed for step in steps if step.table == "schedules") == 1
            (row,) = await database.rows(GET_REQUESTS)
            assert (WORD in row["request"]) != sealed
            assert WORD in str(await client.json("GET", "/api/schedules"))


async def test_a_message_that_cannot_be_decrypted_delays_its_run_alone(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        serving(database_url, master_key=new_master_key(), encrypt_texts=True) as server,
        Client(server.url) as client,
    ):
        locked, other = await made(server, client), await made(server, client, name="weekly")
        database = server.services.storage.database
        codec, open_rows = database.codec, database.codec.open  # type: ignore[union-attr]

        async def opened(contents: Any, values: Any, rows: Any) -> Any:
            if contents is SCHEDULES and str(rows[0]["id"]) == locked and len(rows) == 1:
                raise Conflict("The key is locked.")
            return await open_rows(contents, values, rows)

        monkeypatch.setattr(codec, "open", opened)
        for id in (locked, other):
            await client.json("POST", f"/api/schedules/{id}/run", 202)
        assert (await run_of(client, other))["state"] == "ended"
        found = {(row["state"], row["error"]) for row in await database.rows(GET_RUN_ERRORS)}
        assert found == {("pending", "The key is locked."), ("ended", None)}
