"""Postgres lives, but is frozen, read-only, or busy with DDL; or all replicas were stopped for a while."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from tests.faults.fifty_turns import Site, fifty_turns, finish, refusal
from tests.faults.postgres import Postgres, own_postgres
from tests.support.effort import FULL
from tests.support.http_client import Client

pytestmark = pytest.mark.timeout(300)

Fault = Callable[[Postgres, Site], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def frozen(postgres: Postgres, site: Site) -> AsyncIterator[None]:
    with postgres.frozen():
        for replica in site.replicas:
            async with Client(replica.url) as client:
                await refusal(client, "GET", "/readyz")
        yield


@asynccontextmanager
async def read_only(postgres: Postgres, _: Site) -> AsyncIterator[None]:
    """As in a planned switchover: every session is cut, and the new ones can only read."""
    await _administer(postgres, "ALTER SYSTEM SET default_transaction_read_only = on", cut=True)
    yield
    await _administer(postgres, "SET default_transaction_read_only = off", "ALTER SYSTEM RESET ALL", cut=True)


@asynccontextmanager
async def locked_with_lock_timeout(postgres: Postgres, _: Site) -> AsyncIterator[None]:
    """DDL holds every table, and the operator lets no statement wait for a lock."""
    await _administer(postgres, "ALTER SYSTEM SET lock_timeout = '100ms'", cut=True)
    connection = await asyncpg.connect(postgres.url)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = 0")
            for table in tables:
                await connection.execute(f"LOCK TABLE {table['tablename']} IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await connection.close()
    await _administer(postgres, "ALTER SYSTEM RESET ALL", cut=True)


@asynccontextmanager
async def all_replicas_stopped(_: Postgres, site: Site) -> AsyncIterator[None]:
    """SIGSTOP: a pause of the machine. Whoever wakes first finds all leases expired."""
    for replica in site.replicas:
        os.kill(replica.pid, signal.SIGSTOP)
    yield
    for replica in site.replicas:
        os.kill(replica.pid, signal.SIGCONT)


async def _administer(postgres: Postgres, *statements: str, cut: bool) -> None:
    connection = await asyncpg.connect(postgres.url)
    for statement in statements:
        await connection.execute(statement)
    await connection.execute("SELECT pg_reload_conf()")
    if cut:
        await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    await connection.close()


FAULTS = (frozen, read_only, locked_with_lock_timeout, all_replicas_stopped)


@pytest.mark.parametrize("fault", FAULTS if FULL else FAULTS[:2])
async def test_the_fleet_lives_and_no_turn_is_run_twice(tmp_path: Path, fault: Fault) -> None:
    async with own_postgres(tmp_path) as postgres, fifty_turns(postgres.url, tmp_path) as site:
        async with fault(postgres, site):
            site.go_on()
            await asyncio.sleep(2 * site.lease)  # the fault is a matter of time
        await finish(site)
