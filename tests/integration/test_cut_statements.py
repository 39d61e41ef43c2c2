"""A statement that is interrupted leaves nothing behind on the connection that other statements use next."""

import asyncio
from typing import Any

import asyncpg
import pytest

from turnstream.domain.errors import StatementRefused, StorageUnavailable
from turnstream.storage import database
from turnstream.storage.database import Database, Statement, connect

NUMBER = Statement("SELECT CAST(:number AS int) AS number")
# Other tests share the server, but not the database.
IDLE = Statement(
    "SELECT count(*) AS count FROM pg_stat_activity WHERE state LIKE 'idle in%' AND datname = current_database()"
)


async def _works_as_new(database: Database) -> None:
    async with database.transaction(snapshot=True) as connection:
        assert await connection.rows(NUMBER, number=1)
    row = await database.row(IDLE)
    assert row is not None
    assert row["count"] == 0


async def test_a_value_that_the_driver_does_not_understand(database_url: str) -> None:
    async with connect(database_url, size=1) as database:
        with pytest.raises(StatementRefused):
            await database.rows(NUMBER, number="many")
        await _works_as_new(database)


async def test_a_statement_that_is_cancelled_between_its_two_messages(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = asyncio.Event()

    async def stop_half_way(connection: Any, sql: str, *_: object, **_timeout: object) -> None:
        await connection.prepare(sql)
        prepared.set()
        await asyncio.Event().wait()

    async with connect(database_url, size=1) as database:
        with monkeypatch.context() as patch:
            patch.setattr(asyncpg.Connection, "fetch", stop_half_way)
            reading = asyncio.create_task(database.rows(NUMBER, number=1))
            await prepared.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        await _works_as_new(database)


async def test_a_transaction_that_is_cancelled_in_the_middle(database_url: str) -> None:
    inside = asyncio.Event()

    async def linger(database: Database) -> None:
        async with database.transaction() as connection:
            await connection.rows(NUMBER, number=1)
            inside.set()
            await asyncio.Event().wait()

    async with connect(database_url, size=1) as database:
        lingering = asyncio.create_task(linger(database))
        await inside.wait()
        lingering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lingering
        await _works_as_new(database)


async def test_a_connection_that_is_lost_in_the_middle_is_postgres_being_away(database_url: str) -> None:
    slow = Statement("SELECT pg_sleep(:seconds)")
    async with connect(database_url, size=1) as database:
        other = await asyncpg.connect(database_url)
        waiting = asyncio.create_task(database.rows(slow, seconds=60.0))
        ended = """
            SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE query LIKE '%pg_sleep($1)' AND datname = current_database()
        """
        while not await other.fetchval(ended):  # noqa: ASYNC110, Postgres tells nobody
            await asyncio.sleep(0.002)
        with pytest.raises(StorageUnavailable):
            await waiting
        await other.close()
        await _works_as_new(database)


async def test_a_table_that_changes_under_a_statement_is_postgres_being_away_for_a_moment(database_url: str) -> None:
    """Such a change happens during a deploy of a newer version."""
    rounds = Statement("SELECT * FROM rounds")
    async with connect(database_url, size=1) as database:
        async with database.transaction(snapshot=True) as connection:
            await connection.rows(rounds)
        other = await asyncpg.connect(database_url)
        await other.execute("ALTER TABLE rounds ADD COLUMN news text")
        await other.close()
        with pytest.raises(StorageUnavailable):
            async with database.transaction(snapshot=True) as connection:
                await connection.rows(rounds)
        async with database.transaction(snapshot=True) as connection:
            assert await connection.rows(rounds) == []


async def test_a_postgres_that_only_reads_for_a_while_is_away_for_who_writes(database_url: str) -> None:
    """Such a phase happens while another Postgres takes over."""
    async with connect(database_url, size=1) as database:
        await database.rows(Statement("SET default_transaction_read_only = on"))
        with pytest.raises(StorageUnavailable):
            await database.rows(Statement("DELETE FROM replicas"))
        await database.rows(Statement("SET default_transaction_read_only = off"))
        assert await database.rows(Statement("DELETE FROM replicas")) == []


async def test_an_open_connection_does_not_prevent_the_close_of_the_database(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "FINAL_WRITE_TIMEOUT", 0.05)
    inside = asyncio.Event()

    async def keep(kept: Database) -> None:
        async with kept.transaction():
            inside.set()
            await asyncio.Event().wait()

    async with asyncio.timeout(60):
        async with connect(database_url, size=1) as kept:
            keeping = asyncio.create_task(keep(kept))
            await inside.wait()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
