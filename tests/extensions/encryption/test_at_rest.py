"""While contents are encrypted, the files on disk contain no text of a user, and users still see their texts."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.keys.test_at_rest import found_in
from tests.faults.postgres import Postgres, own_postgres
from tests.support.http_client import Client
from tests.support.http_server import Server, pausing, serving
from turnstream.extensions.embedded import cluster
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.scripted import Pause
from turnstream.storage.contents import BYTES_MARK, TEXT_MARK
from turnstream.storage.database import Statement

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.extensions(
        "documents", "embedded", "encryption", "keys", "openai_api", "schedules", "search", "self_service"
    ),
]

WORDS = ("document-77aa", "file-77aa", "name-77aa", "schedule-77aa")
OPEN_WORDS = ("message-77aa", "answer-77aa")
GET_STORED = Statement("SELECT text FROM open_text WHERE text <> ''")
PLAIN = "plain-77aa"  # the path of a document is not encrypted, so a hit proves that the search of the files works


@asynccontextmanager
async def serving_sealed(url: str, *, encrypt_texts: bool = True) -> AsyncIterator[Server]:
    settings: dict[str, Any] = {"master_key": new_master_key(), "encrypt_texts": encrypt_texts, "self_service": True}
    async with serving(url, **settings) as server:
        yield server


@asynccontextmanager
async def served(url: str, *, encrypt_texts: bool = True) -> AsyncIterator[Client]:
    async with serving_sealed(url, encrypt_texts=encrypt_texts) as server, Client(server.url) as client:
        yield client


async def talk(server: Server, client: Client) -> None:
    """Runs an exchange whose answer stays open until a checkpoint has stored the answer's first text."""
    pause = Pause()
    model = server.scripts.model(pausing(pause, f"{OPEN_WORDS[1]} and more. ", "The end."))
    said = await client.say(await client.chat(title="Sea"), f"{OPEN_WORDS[0]} of a person", model=model)
    while not await server.services.storage.database.rows(GET_STORED):
        pass
    pause.go.set()
    await client.events(said.stream_url)


async def fill(client: Client) -> dict[str, Any]:
    """Stores contents of each kind. Returns the contents in the form that users see."""
    await client.put(f"/api/documents/{PLAIN}.md", content=f"The tide of {WORDS[0]}. " * 200)
    form = {"file": (f"{WORDS[2]}.txt", WORDS[1].encode(), "text/plain")}
    message = {"blocks": [{"type": "text", "text": WORDS[3]}]}
    schedule = {"name": "daily", "cron": "0 7 * * *", "zone": "UTC", "request": message}
    named = await client.json("POST", "/v1/files", 200, files=form, data={"purpose": "user_data"})
    content = await client.get(f"/v1/files/{named['id']}/content")
    assert content.text == WORDS[1]
    return {
        "document": (await client.get(f"/api/documents/{PLAIN}.md")).text,
        "documents": await client.json("GET", "/api/documents"),
        "by path": await client.json("GET", "/api/documents", params={"q": PLAIN}),
        "schedule": (await client.json("POST", "/api/schedules", 201, json=schedule))["request"],
        "file": named,
        "files": await client.json("GET", "/v1/files"),
        "account": await client.json("GET", "/api/account"),
    }


def _shown(found: Any) -> Any:
    """Returns the value without its ids and times."""
    if isinstance(found, dict):
        left = ("id", "first_id", "last_id", "updated_at", "created_at")
        return {name: _shown(value) for name, value in found.items() if name not in left}
    return [_shown(each) for each in found] if isinstance(found, list) else found


async def test_no_dump_no_backup_and_no_write_ahead_log_has_a_text(tmp_path: Path) -> None:
    copy, dumps = Postgres(tmp_path / "backup"), tmp_path / "dumps"
    dumps.mkdir()
    async with own_postgres(tmp_path / "own") as postgres:
        async with serving_sealed(postgres.url) as server, Client(server.url) as client:
            await fill(client)
            await talk(server, client)
        program = [cluster.program("pg_dump"), f"--dbname={postgres.url}"]
        dump = await asyncio.to_thread(subprocess.run, program, check=True, capture_output=True, timeout=150)
        (dumps / "sql").write_bytes(dump.stdout)
        await copy.copy(postgres)
        await postgres.stop()
        hidden = {word: set[str]() for word in (*WORDS, *OPEN_WORDS)}
        for folder, parts in (
            (dumps, {"sql"}),
            (copy.folder / "postgres", {"base"}),
            (postgres.folder / "postgres", {"base", "pg_wal"}),
        ):
            found = found_in(folder, (PLAIN, TEXT_MARK, *hidden))
            assert found[PLAIN] >= parts, "the search finds plain text in each"
            assert found[TEXT_MARK] >= parts
            assert {word: found[word] for word in hidden} == hidden
        assert BYTES_MARK in b"".join(file.read_bytes() for file in (postgres.folder / "postgres/base").rglob("*/*"))


async def test_people_see_the_same_with_encryption_as_without(database_url: str, other_database_url: str) -> None:
    async with served(database_url, encrypt_texts=False) as client:
        plain = _shown(await fill(client))
    async with served(other_database_url) as client:
        assert _shown(await fill(client)) == plain


async def test_words_of_an_encrypted_document_are_not_found(database_url: str) -> None:
    async with served(database_url) as client:
        await fill(client)
        assert (await client.json("GET", "/api/documents", params={"q": WORDS[0]}))["documents"] == []
        (found,) = (await client.json("GET", "/api/documents", params={"q": PLAIN}))["documents"]
        assert TEXT_MARK not in str(found)
