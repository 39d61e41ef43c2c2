"""If requests arrive faster than Postgres answers, the server refuses them at once, and running turns are not
delayed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import asyncpg
import pytest
import pytest_asyncio

from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.locks import Locker
from tests.support.openapi_document import Document
from turnstream.domain.errors import Overloaded
from turnstream.scripted import Pause, message_of, text
from turnstream.storage.database import OF_REQUEST, OWNER, Database, Statement, connect
from turnstream.telemetry import POOL_REFUSALS

pytestmark = pytest.mark.asyncio(loop_scope="session")

READ = Statement("SELECT path FROM documents")
IN_LINE = 3  # requests in the line of each owner, and in the line of all owners
POOL = 4  # connections: requests may use three, of which one owner may use two


def _refusals() -> float:
    return float(sum(POOL_REFUSALS.labels(pool)._value.get() for pool in ("api", "engine")))


@pytest_asyncio.fixture(loop_scope="session")
async def small(database_url: str, document: Document, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr("turnstream.storage.database.PATIENCE", 0.0)
    async with serving(database_url, poll_interval=60, pool_size=POOL) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def locker(database_url: str) -> AsyncIterator[Locker]:
    holder, watcher = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    yield Locker(holder, watcher)
    await holder.close()
    await watcher.close()


@pytest.mark.extensions("documents")
async def test_requests_above_capacity_are_refused_at_once_and_running_turns_write_on(
    small: Server, locker: Locker, document: Document
) -> None:
    pause = Pause()
    start, *rest = message_of(text("Here."))
    async with AsyncExitStack() as stack:
        ada, bob = [
            await stack.enter_async_context(Client(small.url, document, await small.token(name), name))
            for name in ("ada", "bob")
        ]
        turn = await ada.say(await ada.chat(), model=small.scripts.model([start, pause, *rest]))
        await pause.reached.wait()
        refused_before = _refusals()
        async with ada.follow(f"{turn.url}/stream") as events, locker.holding("LOCK TABLE documents"):
            waiting = [asyncio.create_task(client.get("/api/documents")) for client in (ada, ada, bob)]
            await locker.waiting(3)
            more = [asyncio.create_task(client.get("/api/documents")) for client in (ada, bob) * 10]
            while sum(each.done() for each in more) < len(more) - IN_LINE:
                await asyncio.wait([each for each in more if not each.done()], return_when=asyncio.FIRST_COMPLETED)
            refused = [each.result() for each in more if each.done()]
            pause.go.set()
            async for _ in events:
                pass
            ended = await locker.connection.fetchval("SELECT status FROM turns WHERE role = 'assistant'")
            assert (await bob.get("/readyz")).status_code == 200
        assert ended == "complete"
        assert {(each.status_code, each.json()["code"]) for each in refused} == {(503, "overloaded")}
        assert all(1 <= int(each.headers["retry-after"]) <= 3 for each in refused)
        assert _refusals() - refused_before == len(refused)
        assert [each.status_code for each in await asyncio.gather(*waiting)] == [200] * len(waiting)
        assert sum(each.status_code == 200 for each in await asyncio.gather(*more)) >= 1
        assert (await ada.get("/api/documents")).status_code == 200


async def test_requests_leave_connections_for_the_turns_that_run(
    database_url: str, locker: Locker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(database: Database, owner: str) -> None:
        OF_REQUEST.set(True)
        OWNER.set(owner)
        await database.rows(READ)

    monkeypatch.setattr("turnstream.storage.database.PATIENCE", 0.0)
    async with connect(database_url, size=POOL) as database, locker.holding("LOCK TABLE documents"):
        requests = [asyncio.create_task(ask(database, f"owner {number}")) for number in range(POOL)]
        await locker.waiting(POOL - 1)
        with pytest.raises(Overloaded):
            await asyncio.create_task(ask(database, "another owner"))
        assert await database.rows(Statement("SELECT 1 AS one"))
        await locker.connection.execute("COMMIT; BEGIN")
        await asyncio.gather(*requests)
        await asyncio.create_task(ask(database, "another owner"))
