"""Faults of a living Postgres: it is frozen, read-only, impatient, full, or busy with DDL, cuts sessions, or loses a
backend. One fault stops all replicas for a while.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import psutil
import pytest

from tests.faults.fifty_turns import Site, fifty_turns, finish, leases_are_renewed, refusal
from tests.faults.postgres import Postgres, own_postgres
from tests.support.effort import share
from tests.support.http_client import Client

pytestmark = pytest.mark.timeout(300)

Fault = Callable[[Postgres, Site], AbstractAsyncContextManager[None]]

_OTHERS = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
_CUT = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OTHERS}"
_CUT_OTHERS = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {_OTHERS} AND pid <> ALL($1)"
_BOTH_ARE_CONNECTED = "SELECT count(*) >= 2 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"


@asynccontextmanager
async def frozen(postgres: Postgres, site: Site) -> AsyncIterator[None]:
    with postgres.frozen():
        for replica in site.replicas:
            async with Client(replica.url) as client:
                await refusal(client, "GET", "/readyz")
        yield


@asynccontextmanager
async def stalls(postgres: Postgres, site: Site) -> AsyncIterator[None]:
    """Freezes Postgres repeatedly, for about a lease each time."""
    for part in (0.6, 0.8, 0.9, 1.0, 1.2):
        with postgres.frozen():
            await asyncio.sleep(part * site.lease)
        await leases_are_renewed(site.watch, 1)
    yield


@asynccontextmanager
async def postmaster_frozen(postgres: Postgres, _: Site) -> AsyncIterator[None]:
    """Freezes the postmaster: existing connections work, but no new connection can be opened."""
    postmaster = psutil.Process(postgres.pid)
    postmaster.suspend()
    try:
        yield
    finally:
        postmaster.resume()


@asynccontextmanager
async def read_only(postgres: Postgres, _: Site) -> AsyncIterator[None]:
    """Makes Postgres read-only, like a planned switchover: every session is cut, and new sessions can only read."""
    async with _settings(postgres, default_transaction_read_only="on"):
        yield


@asynccontextmanager
async def locked(postgres: Postgres, _: Site) -> AsyncIterator[None]:
    async with _locked(postgres):
        yield


@asynccontextmanager
async def locked_with_lock_timeout(postgres: Postgres, _: Site) -> AsyncIterator[None]:
    """Locks the tables, and lets no statement wait for a lock."""
    async with _settings(postgres, lock_timeout="100ms"), _locked(postgres):
        yield


@asynccontextmanager
async def locked_with_statement_timeout(postgres: Postgres, _: Site) -> AsyncIterator[None]:
    """Locks the tables, and sets a short time limit for statements."""
    async with _settings(postgres, statement_timeout="250ms"), _locked(postgres):
        yield


@asynccontextmanager
async def impatient_with_idle_sessions(postgres: Postgres, _: Site) -> AsyncIterator[None]:
    """Ends sessions that are idle in a transaction sooner than a busy client sends its next statement."""
    async with _settings(postgres, idle_in_transaction_session_timeout="5ms", idle_session_timeout="1s"):
        yield


@asynccontextmanager
async def all_connections_taken(postgres: Postgres, _: Site) -> AsyncIterator[None]:
    """Cuts the connections of the replicas, and lets another client take all connections."""
    taken = [await asyncpg.connect(postgres.url)]
    try:
        while await taken[0].fetchval(_CUT_OTHERS, [each.get_server_pid() for each in taken]):
            with suppress(asyncpg.TooManyConnectionsError):
                while True:
                    taken.append(await asyncpg.connect(postgres.url))
        yield
    finally:
        for each in taken:
            await each.close()


@asynccontextmanager
async def sessions_cut_again_and_again(postgres: Postgres, _: Site) -> AsyncIterator[None]:
    """Cuts all sessions several times, then kills a backend: Postgres no longer trusts its shared memory, ends all
    other backends, and recovers.
    """
    async with postgres.connected() as connection:
        for _time in range(5):
            while not await connection.fetchval(_BOTH_ARE_CONNECTED):  # noqa: ASYNC110, there is no event for this
                await asyncio.sleep(0.01)
            await connection.execute(_CUT)
        os.kill(connection.get_server_pid(), signal.SIGKILL)
        connection.terminate()
    yield


@asynccontextmanager
async def all_replicas_stopped(_: Postgres, site: Site) -> AsyncIterator[None]:
    """Stops all replicas with SIGSTOP, as if the machine had paused. The first replica that wakes up finds all leases
    expired.
    """
    for replica in site.replicas:
        os.kill(replica.pid, signal.SIGSTOP)
    yield
    for replica in site.replicas:
        os.kill(replica.pid, signal.SIGCONT)


@asynccontextmanager
async def _settings(postgres: Postgres, **settings: str) -> AsyncIterator[None]:
    """Changes settings and cuts all sessions, as an operator does. Reverts both in the same way."""
    await _administer(postgres, *(f"ALTER SYSTEM SET {name} = '{value}'" for name, value in settings.items()))
    yield
    await _administer(postgres, "SET default_transaction_read_only = off", "ALTER SYSTEM RESET ALL")


async def _administer(postgres: Postgres, *statements: str) -> None:
    async with postgres.connected() as connection:
        for statement in (*statements, "SELECT pg_reload_conf()", _CUT):
            await connection.execute(statement)


@asynccontextmanager
async def _locked(postgres: Postgres) -> AsyncIterator[None]:
    """Locks every table, as DDL does."""
    async with postgres.connected() as connection:
        await connection.execute("SET lock_timeout = 0; SET statement_timeout = 0")
        rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        tables = ", ".join(row["tablename"] for row in rows)
        while not connection.is_in_transaction():
            try:
                await connection.execute(f"BEGIN; LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")
            except asyncpg.DeadlockDetectedError:  # a deadlock with a transaction of a replica
                await connection.execute("ROLLBACK")
        yield


FAULTS = (
    *(frozen, read_only, stalls, postmaster_frozen, all_replicas_stopped),
    *(locked, locked_with_lock_timeout, locked_with_statement_timeout, impatient_with_idle_sessions),
    *(all_connections_taken, sessions_cut_again_and_again),
)


@pytest.mark.parametrize("fault", share(FAULTS, full=3, plain=6))
async def test_the_fleet_lives_and_no_turn_is_run_twice(tmp_path: Path, fault: Fault) -> None:
    async with own_postgres(tmp_path) as postgres, fifty_turns(postgres.url, tmp_path) as site:
        async with fault(postgres, site):
            site.go_on()
            await asyncio.sleep(2 * site.lease)  # the fault must last for longer than a lease
        await finish(site)
