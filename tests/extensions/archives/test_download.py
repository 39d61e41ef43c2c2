"""The download of an archive over HTTP sends only rows of the owner, and holds no transaction open while a client
stalls.
"""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from pydantic import SecretStr

from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.locks import connection_to
from turnstream.config import Settings
from turnstream.extensions.archives.commands import _import

PATH = "/api/account/export"
OPEN_SINCE_BEFORE = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in%' AND xact_start <= $1
"""


@pytest.fixture
async def own(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url, archive_downloads=True) as server:
        yield server


@pytest.fixture
async def ada(own: Server) -> AsyncIterator[Client]:
    async with Client(own.url, None, await own.token("ada"), "ada") as client:
        yield client


async def _exported(server: Server) -> int:
    async with connection_to(server.database_url) as connection:
        number: int = await connection.fetchval("SELECT count(*) FROM audit WHERE kind = 'owner.exported'")
        return number


async def test_a_download_has_all_of_the_owner_nothing_of_others_and_can_be_imported(
    own: Server, ada: Client, tmp_path: Path
) -> None:
    await ada.ask(await ada.chat(title="Tides"), "When is high tide?")
    await ada.put("/api/documents/notes", content="The moon.")
    upload = await ada.json("POST", "/api/uploads", 201, content="some bytes")
    async with Client(own.url, None, await own.token("bob"), "bob") as bob:
        await bob.ask(await bob.chat(title="Secret of Bob"), "Secret of Bob")
        await bob.put("/api/documents/secret", content="Secret of Bob")
        await bob.post("/api/uploads", content="Secret of Bob")
    response = await ada.get(PATH)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-tar")
    assert response.headers["cache-control"] == "no-store"
    assert b"Secret of Bob" not in response.content
    with tarfile.open(fileobj=io.BytesIO(response.content)) as archive:
        names = archive.getnames()
    assert (names[0], names[-1]) == ("archive.json", "end.json")
    assert f"uploads/{upload['id']}/content" in names
    file = tmp_path / "ada.tar"
    file.write_bytes(response.content)
    settings = Settings(_env_file=None, database_url=SecretStr(own.database_url))
    counts = await _import(settings, file, "carl", trusted=False)
    assert counts.whole
    assert counts.made == {"documents": 1, "uploads": 1, "chats": 1, "recordings": 0}
    assert await _exported(own) == 1


async def test_a_client_that_does_not_read_keeps_no_transaction_open(own: Server, ada: Client) -> None:
    chat = (await ada.chat()).rpartition("/")[2]
    await ada.ask(f"/api/chats/{chat}")
    async with connection_to(own.database_url) as connection:
        await connection.execute(
            "UPDATE blocks SET text = repeat('tide ', 4000000)"
            " WHERE turn_id IN (SELECT id FROM turns WHERE chat_id = $1) AND type = 'text'",
            chat,
        )
        async with ada.stream("GET", PATH) as response:
            assert response.status_code == 200
            while not own.stalled_connections:  # noqa: ASYNC110, uvicorn has no event for a stall
                await asyncio.sleep(0.01)
            stalled_at = await connection.fetchval("SELECT clock_timestamp()")
            # The server's own tasks run short transactions all the time. Each transaction that began before the stall
            # must end.
            while await connection.fetchval(OPEN_SINCE_BEFORE, stalled_at):
                assert own.stalled_connections
                await asyncio.sleep(0.01)
            assert own.stalled_connections, "nothing was read meanwhile"


async def test_a_head_exports_nothing(own: Server, ada: Client) -> None:
    response = await ada.head(PATH)
    assert (response.status_code, response.content) == (200, b"")
    assert await _exported(own) == 0


async def test_a_credential_of_one_chat_or_without_a_right_downloads_nothing(own: Server, ada: Client) -> None:
    chat = (await ada.chat()).rpartition("/")[2]
    for narrower in ({"chat": chat}, {"scopes": ["read"]}, {"fixed": {"system_prompt": "x"}}):
        made = await ada.json("POST", "/api/tokens", json={"seconds": 600, **narrower})
        async with Client(own.url, None, made["token"]) as weak:
            assert (await weak.get(PATH)).status_code == 403
    assert await _exported(own) == 0


async def test_downloads_are_off_unless_the_operator_turns_them_on(database_url: str) -> None:
    async with serving(database_url) as server, httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        response = await client.get(PATH)
        assert response.status_code == 403
        assert "TURNSTREAM_ARCHIVE_DOWNLOADS" in response.json()["detail"]
