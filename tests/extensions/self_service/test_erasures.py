"""Due erasures: one of several replicas erases the rows of an owner. If it is killed or fails, the erasure is completed
later.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from structlog.testing import capture_logs

from tests.support.harness import OWNER, Harness
from tests.support.http_client import Client
from tests.support.http_server import serving
from tests.support.locks import Locker
from tests.support.owner_rows import fill_owner, rows_of
from tests.support.server_process import Server
from turnstream.config import Settings
from turnstream.domain.errors import NotFound
from turnstream.domain.identity import Identity
from turnstream.extensions.documents.store import Documents
from turnstream.extensions.owner_commands.owners import _erase
from turnstream.extensions.self_service.account import OwnAccounts
from turnstream.extensions.self_service.erasures import Erasures
from turnstream.libraries.erasure.owners import _WITH_OWNER, Owners


@pytest.fixture(autouse=True)
def no_token_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the cache of tokens, so that an erasure need not wait until servers forget cached tokens."""
    monkeypatch.setattr("turnstream.extensions.self_service.erasures.BELIEVED", 0)
    monkeypatch.setattr("turnstream.extensions.owner_commands.owners.BELIEVED", 0)
    monkeypatch.setattr("turnstream.api.identity.stored.BELIEVED", 0)


def _no_files(_turn: UUID) -> int:
    return 0


async def _value(url: str, sql: str, *values: object) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql, *values)
    finally:
        await connection.close()


async def _until_none_is_due(url: str) -> None:
    while await _value(url, "SELECT count(*) FROM erasures WHERE due_at <= now()"):  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.05)


@asynccontextmanager
async def _running(*replicas: Erasures) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.run()) for each in replicas]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_an_erasure_that_is_due_leaves_nothing_of_the_owner_and_all_of_others(harness: Harness) -> None:
    await fill_owner(harness)
    other = Identity("other")
    await OwnAccounts(harness.database, 3600).ask_erasure(other)
    before = await rows_of(harness.url, without=("open_text",))
    theirs = {row for rows in before.values() for row in rows if re.search(r"\bother\b", row)}
    await _value(harness.url, "UPDATE erasures SET due_at = now() WHERE owner = $1", OWNER)
    with capture_logs() as logs:
        async with _running(Erasures(harness.database, _no_files, 0.3)):
            await _until_none_is_due(harness.url)
    assert await Owners(harness.database).is_erased(OWNER)
    after = await rows_of(harness.url)
    assert theirs <= {row for rows in after.values() for row in rows}
    assert after["erasures"] == [row for row in before["erasures"] if row.startswith("(other,")]
    assert "owner.erased" in after["audit"][-1]
    assert [each["owner"] for each in logs if each["event"] == "owner.erased"] == [OWNER]


async def test_of_two_replicas_one_executes_each_erasure(harness: Harness) -> None:
    owners = {f"owner {number}" for number in range(12)}
    for owner in owners:
        await Documents(harness.database).put(owner, "a", "x")
        await OwnAccounts(harness.database, 0).ask_erasure(Identity(owner))
    with capture_logs() as logs:
        async with _running(*(Erasures(harness.database, _no_files, 5) for _ in range(2))):
            await _until_none_is_due(harness.url)
    assert sorted(each["owner"] for each in logs if each["event"] == "owner.erased") == sorted(owners)
    entries = "SELECT array_agg(owner ORDER BY owner) FROM audit WHERE kind = 'owner.erased'"
    assert await _value(harness.url, entries) == sorted(owners)


async def test_a_slow_erasure_keeps_its_claim(harness: Harness) -> None:
    await Documents(harness.database).put(OWNER, "a", "x")
    await OwnAccounts(harness.database, 0).ask_erasure(Identity(OWNER))
    claimed = "SELECT claimed_until FROM erasures"
    async with (
        harness.locker() as locker,
        locker.holding("SELECT FROM documents FOR UPDATE"),
        _running(Erasures(harness.database, _no_files, 1.0)),
    ):
        await locker.waiting()
        first = await _value(harness.url, claimed)
        while await _value(harness.url, claimed) == first:  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.02)


async def test_a_failed_erasure_keeps_no_other_waiting_and_is_repeated(harness: Harness) -> None:
    asked = await harness.ask()
    await Documents(harness.database).put("bob", "a", "x")
    failures: list[UUID] = []

    def delete_files(turn: UUID) -> int:
        if not failures:
            failures.append(turn)
            raise PermissionError("the folder of recordings is not writable")
        return 0

    for owner in (OWNER, "bob"):
        await OwnAccounts(harness.database, 0).ask_erasure(Identity(owner))
    await _value(
        harness.url,
        "UPDATE turns SET status = 'cancelled', stop_reason = 'cancelled', ended_at = now() WHERE status = 'queued'",
    )
    with capture_logs() as logs:
        async with _running(Erasures(harness.database, delete_files, 0.5)):
            await _until_none_is_due(harness.url)
    events = [(each["event"], each["owner"]) for each in logs if each["event"].split(".")[0] in {"erasure", "owner"}]
    assert events == [("erasure.failed", OWNER), ("owner.erased", "bob"), ("owner.erased", OWNER)]
    assert failures
    assert await _value(harness.url, "SELECT count(*) FROM chats WHERE id = $1", asked.chat) == 0


async def test_a_due_erasure_cannot_be_undone(harness: Harness) -> None:
    accounts, ada = OwnAccounts(harness.database, 0), Identity(OWNER)
    await accounts.ask_erasure(ada)
    with pytest.raises(NotFound, match="begun"):
        await accounts.undo_erasure(ada)
    assert await _value(harness.url, "SELECT count(*) FROM audit WHERE kind = 'erasure.undone'") == 0


async def test_an_undone_erasure_is_never_executed(harness: Harness) -> None:
    accounts = OwnAccounts(harness.database, 3600)
    for owner in ("ada", "bob"):
        await Documents(harness.database).put(owner, "a", "x")
        await accounts.ask_erasure(Identity(owner))
    await accounts.undo_erasure(Identity("ada"))
    await _value(harness.url, "UPDATE erasures SET due_at = now()")
    async with _running(Erasures(harness.database, _no_files, 0.3)):
        await _until_none_is_due(harness.url)
    assert await _value(harness.url, "SELECT array_agg(owner) FROM documents") == ["ada"]


async def test_the_command_ends_the_request_so_that_a_later_owner_of_the_name_stays(harness: Harness) -> None:
    await Documents(harness.database).put(OWNER, "a", "x")
    await OwnAccounts(harness.database, 3600).ask_erasure(Identity(OWNER))
    await _erase(Settings(_env_file=None, database_url=harness.url), OWNER)
    assert await _value(harness.url, "SELECT count(*) FROM erasures") == 0


async def test_an_owner_erases_their_account_over_http(database_url: str) -> None:
    async with serving(database_url, self_service=True, erasure_delay=0, lease=1) as server:
        token = await server.token("ada")
        async with (
            Client(server.url, None, token, "ada") as ada,
            Client(server.url, None, await server.token("bob"), "bob") as bob,
        ):
            await ada.ask(await ada.chat())
            kept = await bob.ask(await bob.chat())
            await ada.json("POST", "/api/account/erasure", 202, json={"owner": "ada"})
            await _until_none_is_due(database_url)
            assert (await ada.get("/api/account")).status_code == 401
            assert (await bob.json("GET", kept.url))["status"] == "complete"
        assert await Owners(server.services.storage.database).is_erased("ada")


@pytest.mark.timeout(180)
async def test_after_a_kill_in_the_middle_of_an_erasure_another_replica_completes_it(
    database_url: str, tmp_path: Path
) -> None:
    settings = {"TURNSTREAM_SELF_SERVICE": "true", "TURNSTREAM_ERASURE_DELAY": "0"}
    first, second = Server(database_url, tmp_path, settings), Server(database_url, tmp_path, settings)
    erased_first, erased_last = sorted(("documents", "uploads"), key=_WITH_OWNER.index)
    connection, watcher = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    try:
        await first.start()
        async with Client(first.url) as api:
            await api.ask(await api.chat())
            await api.put("/api/documents/a", content="x")
            await api.post("/api/uploads", content="bytes")
            locker = Locker(connection, watcher)
            async with locker.holding(f"SELECT FROM {erased_first} FOR UPDATE"):
                await api.json("POST", "/api/account/erasure", 202, json={"owner": "local"})
                while await watcher.fetchval("SELECT count(*) FROM chats"):  # noqa: ASYNC110, rows have no event
                    await asyncio.sleep(0.01)
                await locker.waiting()
                await first.kill()
        assert await watcher.fetchval(f"SELECT count(*) FROM {erased_last}") > 0
        assert await watcher.fetchval("SELECT count(*) FROM audit WHERE kind = 'owner.erased'") == 0
        await second.start()
        await _until_none_is_due(database_url)
        assert await watcher.fetchval(f"SELECT count(*) FROM {erased_last}") == 0
        assert await watcher.fetchval("SELECT count(*) FROM audit WHERE kind = 'owner.erased'") == 1
    finally:
        await first.close()
        await second.close()
        await connection.close()
        await watcher.close()
