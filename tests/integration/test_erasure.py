"""The erasure of an owner removes all data of the owner, and no other data, even if it is interrupted at any step."""

import asyncio
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from pydantic import SecretStr

from tests.support.harness import OWNER, Asked, Harness
from tests.support.http_client import Client
from tests.support.http_server import pausing, serving
from tests.support.openapi_document import Document
from tests.support.owner_rows import fill_owner, rows_of
from turnstream.config import Settings
from turnstream.extensions.owner_commands.owners import _erase
from turnstream.kit.ids import new_id
from turnstream.libraries.erasure.owners import Owners
from turnstream.scripted import Pause
from turnstream.storage.all_tables import ALL_TABLES


@pytest.fixture(autouse=True)
def no_token_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets an erasure begin at once: no server runs in most of these tests, so none can still trust a token of the
    owner.
    """
    monkeypatch.setattr("turnstream.extensions.owner_commands.owners.BELIEVED", 0)


@pytest.fixture
async def asked(harness: Harness, tmp_path: Path) -> Asked:
    second = await fill_owner(harness)
    recordings = tmp_path / "recordings" / str(second.turn)
    recordings.mkdir(parents=True)
    (recordings / "attempt-001-round-001-try-01.jsonl").write_text('{"recorded": 1}\n')
    return second


@pytest.fixture
def settings(harness: Harness, tmp_path: Path) -> Settings:
    return Settings(_env_file=None, database_url=harness.url, record=tmp_path / "recordings")


@pytest.mark.extensions("lab")
async def test_an_erasure_leaves_nothing_of_the_owner_and_all_of_others(
    harness: Harness, asked: Asked, settings: Settings
) -> None:
    async with harness.locker() as locker:
        await locker.connection.execute(
            "INSERT INTO uploads SELECT $1, 'other', digest, media_type, content FROM uploads", new_id()
        )
    await _erase(settings, OWNER)
    async with harness.locker() as locker:
        assert await locker.connection.fetchval("SELECT count(*) FROM open_text WHERE attempt > 0") == 0
    rows = await rows_of(harness.url, without=("open_text", "audit", "token_requirement"))
    assert rows.keys() == {"documents", "search_documents", "uploads"}
    assert all("other" in row for rows in rows.values() for row in rows)
    assert await Owners(harness.database).is_erased(OWNER)
    assert not await Owners(harness.database).is_erased("other")
    assert await _erase(settings, OWNER) == {}


async def test_every_table_with_an_owner_is_erased(harness: Harness) -> None:
    """Covers future tables, too: each table has the owner in its rows, or its rows are deleted with a turn or a
    chat.
    """
    reached = {name for name, table in ALL_TABLES.items() if "owner" in table.columns}
    while more := {
        name
        for name, table in ALL_TABLES.items()
        for key in table.foreign_keys
        if name not in reached and key.table in reached and key.cascades
    }:
        reached |= more
    others = {
        "activity",
        "clock_steps",
        "journal_ticks",
        "open_text",
        "replicas",
        "signing_key",
        "provider_rates",
        "sweeps",
        "token_requirement",
    }
    assert ALL_TABLES.keys() - reached == others


async def test_an_erasure_cancels_the_turn_that_runs(database_url: str) -> None:
    pause = Pause()
    async with serving(database_url) as server, httpx2.AsyncClient(base_url=server.url, trust_env=False) as anybody:
        document = Document((await anybody.get("/openapi.json")).json())
        async with Client(server.url, document, await server.token(OWNER), OWNER) as api:
            turn = await api.say(await api.chat(), model=server.scripts.model(pausing(pause, "One ", "two.")))
            await pause.reached.wait()
            reading = asyncio.create_task(api.events(turn.stream_url))
            erased = await _erase(Settings(_env_file=None, database_url=SecretStr(database_url)), OWNER)
            assert erased["chats"] == erased["tokens"] == 1
            events = [event.name for event in await reading]
            assert events[-1] == "turn_cancelled"
        assert await Owners(server.services.storage.database).is_erased(OWNER)


@pytest.mark.extensions("lab")
async def test_an_erasure_that_was_killed_at_any_step_is_taken_up_again(
    harness: Harness, asked: Asked, settings: Settings
) -> None:
    """Each call ends after two steps, like a killed process."""
    owners, calls = Owners(harness.database), 0
    while not await owners.is_erased(OWNER):
        steps = owners.erase(OWNER)
        with suppress(StopAsyncIteration):
            await anext(steps)
            await anext(steps)
        await steps.aclose()
        calls += 1
    assert calls >= 5
    assert await _erase(settings, OWNER) == {}
