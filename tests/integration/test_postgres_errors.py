"""Every error of Postgres has one of two meanings, and no error stops a background task."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.integration.proxy import proxied
from turnstream.domain.errors import StatementRefused, StorageError, StorageUnavailable
from turnstream.setup import engine
from turnstream.setup.engine import background
from turnstream.storage.database import OF_REQUEST, OWNER, Database, Statement, connect
from turnstream.storage.runs.session import ReplicaSession

BACKEND = Statement("SELECT pg_backend_pid()")
RAISE = Statement("SELECT fail(:state)")
ADD_DELETED = Statement("INSERT INTO deleted_chats SELECT :owner, gen_random_uuid(), now() RETURNING chat_id")
GET_DELETED = Statement("SELECT chat_id FROM deleted_chats WHERE owner = :owner")
FAIL = """
CREATE FUNCTION fail(state text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = 'as asked';
END $$
"""


def _classes_of(kind: type[asyncpg.PostgresError]) -> Iterator[type[asyncpg.PostgresError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _classes_of(each)


# Classes 00 to 02 are not errors, and Postgres refuses to raise 00000.
STATES = sorted(
    {state for each in _classes_of(asyncpg.PostgresError) if (state := getattr(each, "sqlstate", None)) is not None}
)
PASSING = (
    "0A000",  # a standby before its promotion cannot read unlogged tables
    "08006",
    "25006",  # a planned switchover: both nodes are read-only
    "26000",  # a transaction pooler has lost the prepared statement
    "28P01",
    "3D000",
    "40P01",
    "42501",
    "42704",  # without USAGE on the schema, no name is found for a while
    "42883",
    "42P01",
    "42P05",
    "53300",
    "53100",
    "55P03",  # `lock_timeout` of a write during DDL
    "57014",
    "57P01",
    "57P03",
    "58030",
)
REFUSALS = ("22021", "22P02", "23505", "42601", "42703", "54000", "P0001", "XX000")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with _with_fail(database_url), connect(database_url, size=2) as database:
        yield database


@asynccontextmanager
async def _with_fail(url: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(url)
    await connection.execute(FAIL)
    yield
    await connection.execute("DROP FUNCTION fail")
    await connection.close()


async def _meaning(database: Database, state: str) -> type[StorageError]:
    with pytest.raises(StorageError) as raised:
        await database.rows(RAISE, state=state)
    return raised.type


async def test_no_error_of_postgres_leaves_storage_as_the_drivers(database: Database) -> None:
    meanings = {state: await _meaning(database, state) for state in STATES if state[:2] not in {"00", "01", "02"}}
    assert {state for state in PASSING if meanings[state] is not StorageUnavailable} == set()
    assert {state for state in REFUSALS if meanings[state] is not StatementRefused} == set()


async def test_inside_a_transaction_too(database: Database) -> None:
    for state, meaning in (("0A000", StorageUnavailable), ("22021", StatementRefused)):
        with pytest.raises(meaning):
            async with database.transaction() as connection:
                await connection.rows(RAISE, state=state)


async def test_a_background_task_that_postgres_ended_is_begun_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_RESTART", 0)
    states, done, failed = iter(("XX000", "42703", "0A000")), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        if (state := next(states, None)) is not None:
            async with asyncio.TaskGroup() as group:  # a group wraps it, like errors of webhooks and the worker
                group.create_task(database.rows(RAISE, state=state))
        done.set()
        await asyncio.Event().wait()

    async with background(failed, work):
        await done.wait()
    assert not failed.is_set()


async def test_a_background_task_that_fails_otherwise_stops_the_server() -> None:
    failed = asyncio.Event()

    async def work() -> None:
        raise KeyError("a bug")

    async with background(failed, work):
        await failed.wait()


async def test_a_statement_without_an_answer_is_given_up_and_its_connection_replaced(database_url: str) -> None:
    async with connect(database_url, size=1, statement_timeout=0.2) as database:
        before = await database.row(Statement("SELECT pg_backend_pid() AS id"))
        with pytest.raises(StorageUnavailable):
            await database.row(Statement("SELECT pg_sleep(60)"))
        with pytest.raises(StorageUnavailable):
            async with database.transaction() as connection:
                await connection.row(Statement("SELECT pg_sleep(60)"))
        after = await database.row(Statement("SELECT pg_backend_pid() AS id"))
        assert before is not None
        assert after is not None
        assert before["id"] != after["id"]
        await database.row(Statement("SELECT pg_sleep(0.4)", timeout=60))  # the statement has its own limit


async def test_a_statement_that_is_given_up_waits_for_its_lock_no_more(database_url: str) -> None:
    """Otherwise Postgres would keep a session for each abandoned statement, and would have no connection left before a
    long lock ends.
    """
    write, waiting = Statement("DELETE FROM deleted_chats"), "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with connect(database_url, size=2, statement_timeout=0.2) as database:
        locking, looking = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
        async with locking.transaction():
            await locking.execute("LOCK TABLE deleted_chats")
            with pytest.raises(StorageUnavailable):
                await database.rows(write)
            with pytest.raises(StorageUnavailable):
                async with database.transaction() as connection:
                    await connection.rows(write)
            while await looking.fetchval(waiting):  # noqa: ASYNC110, it happens in Postgres
                await asyncio.sleep(0.02)
        await asyncio.gather(locking.close(), looking.close())


async def test_a_transaction_without_an_answer_costs_the_other_connections_too(database_url: str) -> None:
    async with connect(database_url, size=2, statement_timeout=0.2) as database:
        others = []

        async def wait() -> None:
            async with database.transaction() as connection:
                others.append(await database.row(BACKEND))
                await connection.row(Statement("SELECT pg_sleep(60)"))

        with pytest.raises(StorageUnavailable, match="does not answer"):
            await wait()
        assert await database.row(BACKEND) not in others


async def test_the_kernel_ends_connections_whose_other_end_is_silent(database_url: str) -> None:
    async with proxied(database_url) as (way, _), connect(way, size=1) as database, database.transaction() as lent:
        link = lent.raw._transport.get_extra_info("socket")
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if sys.platform == "linux":
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert [link.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [10, 5, 3, 10_000]


async def test_a_busy_pool_is_not_taken_for_a_postgres_that_is_gone(database_url: str) -> None:
    async with connect(database_url, size=1, statement_timeout=1) as database:
        async with database.transaction() as transaction:
            process = await transaction.row(BACKEND)
            with pytest.raises(StorageUnavailable, match="busy"):
                await database.row(BACKEND)
        assert await database.row(BACKEND) == process, "its connection was kept"


async def test_the_requests_of_one_owner_use_half_of_the_connections(database_url: str) -> None:
    async with connect(database_url, size=4, statement_timeout=1) as database, AsyncExitStack() as held:
        OF_REQUEST.set(True)
        OWNER.set("ada")
        for _ in range(2):
            await held.enter_async_context(database.transaction())
        with pytest.raises(StorageUnavailable):
            await database.row(BACKEND)
        for other in ("bob", ""):
            OWNER.set(other)
            assert await database.row(BACKEND)
        OWNER.set("ada")
        await held.aclose()
        assert await database.row(BACKEND)


async def test_a_write_after_a_cancelled_transaction_is_committed(database_url: str) -> None:
    """The BEGIN may still be running when the next task gets the connection."""
    async with connect(database_url, size=1) as database, connect(database_url, size=1) as other:
        for steps in range(1, 8):  # steps of the event loop before the cancellation

            async def begin() -> None:
                async with database.transaction():
                    await asyncio.Event().wait()

            beginning = asyncio.create_task(begin())
            for _ in range(steps):
                await asyncio.sleep(0)
            beginning.cancel()
            await asyncio.wait([beginning])
            assert await database.rows(ADD_DELETED, owner=str(steps))
            assert await other.rows(GET_DELETED, owner=str(steps)), "the answer said that it was written"
            async with database.transaction() as connection:
                assert await connection.rows(BACKEND)


async def test_a_session_whose_search_path_leads_to_no_schema_is_opened_again_until_it_does(database_url: str) -> None:
    """This happens after a REVOKE of the schema's USAGE: Postgres answers, and no statement fails."""
    name, lost, opened = urlsplit(database_url).path[1:], asyncio.Event(), asyncio.Event()
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(f"ALTER DATABASE {name} SET search_path = nowhere")
        async with background(
            asyncio.Event(), ReplicaSession(database_url, 7, lambda _: None, lost.set, opened.set).run
        ):
            await lost.wait()
            assert not opened.is_set()
            await connection.execute(f"ALTER DATABASE {name} RESET search_path")
            await opened.wait()
    finally:
        await connection.close()
