"""Postgres lives, but is frozen, read-only, or busy with DDL; or all replicas were stopped for a while."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from tests.faults.fifty_turns import TURNS, Site, check_all_is_well, fifty_turns, leases_are_renewed, refusal, until_all
from tests.support.effort import FULL
from tests.support.http_client import Client

pytestmark = pytest.mark.timeout(300)

Fault = Callable[[Site], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def frozen(site: Site) -> AsyncIterator[None]:
    with site.postgres.frozen():
        for replica in site.replicas:
            async with Client(replica.url) as client:
                await refusal(client, "GET", "/readyz")
        yield


@asynccontextmanager
async def read_only(site: Site) -> AsyncIterator[None]:
    """As in a planned switchover: every session is cut, and the new ones can only read."""
    await _administer(site, "ALTER SYSTEM SET default_transaction_read_only = on", cut=True)
    yield
    await _administer(site, "SET default_transaction_read_only = off", "ALTER SYSTEM RESET ALL", cut=True)


@asynccontextmanager
async def locked_with_lock_timeout(site: Site) -> AsyncIterator[None]:
    """DDL holds every table, and the operator lets no statement wait for a lock."""
    await _administer(site, "ALTER SYSTEM SET lock_timeout = '100ms'", cut=True)
    connection = await asyncpg.connect(site.postgres.url)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = 0")
            for table in tables:
                await connection.execute(f"LOCK TABLE {table['tablename']} IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await connection.close()
    await _administer(site, "ALTER SYSTEM RESET ALL", cut=True)


@asynccontextmanager
async def all_replicas_stopped(site: Site) -> AsyncIterator[None]:
    """SIGSTOP: a pause of the machine. Whoever wakes first finds all leases expired."""
    for replica in site.replicas:
        os.kill(replica.pid, signal.SIGSTOP)
    yield
    for replica in site.replicas:
        os.kill(replica.pid, signal.SIGCONT)


async def _administer(site: Site, *statements: str, cut: bool) -> None:
    connection = await asyncpg.connect(site.postgres.url)
    for statement in statements:
        await connection.execute(statement)
    await connection.execute("SELECT pg_reload_conf()")
    if cut:
        await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    await connection.close()


FAULTS = (frozen, read_only, locked_with_lock_timeout, all_replicas_stopped)


@pytest.mark.parametrize("fault", FAULTS if FULL else FAULTS[:2])
async def test_the_fleet_lives_and_no_turn_is_run_twice(tmp_path: Path, fault: Fault) -> None:
    async with fifty_turns(tmp_path) as site:
        async with fault(site):
            for gate in ("before the call", "end of text", "effect"):
                site.model.open(gate)
            await asyncio.sleep(2 * site.lease)  # the fault is a matter of time
        await site.model.until_reached("before the end", TURNS)
        await leases_are_renewed(site.watch)
        site.model.open("before the end")
        await until_all(site.readers, lambda reader: reader.turn.end is not None)
        await check_all_is_well(site)
        for replica in site.replicas:
            async with Client(replica.url) as client:
                assert (await client.get("/readyz")).status_code == 200
