"""Postgres fails over: the primary dies, its synchronous standby is promoted, and both stand in DATABASE_URL."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from app.storage.embedded.account import account_for
from app.storage.embedded.cluster import program
from tests.faults.fifty_turns import TURNS, check_all_is_well, fifty_turns, leases_are_renewed, until_all
from tests.faults.postgres import Postgres
from tests.support.http_client import Client

pytestmark = pytest.mark.timeout(300)


@asynccontextmanager
async def with_standby(postgres: Postgres, standby: Postgres) -> AsyncIterator[Mapping[str, str]]:
    """`standby` follows `postgres`, and every commit waits for it. Both are in the URL then."""
    await _copy(postgres, standby)
    await standby.start()
    connection = await asyncpg.connect(postgres.url)
    await connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    await connection.execute("SELECT pg_reload_conf()")
    while await connection.fetchval("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await connection.close()
    hosts = [parse_qs(urlsplit(each.url).query)["host"][0] for each in (postgres, standby)]
    postgres.url = (
        f"postgresql://postgres@/postgres?host={','.join(hosts)}&port=5432,5432&target_session_attrs=read-write"
    )
    try:
        yield {}
    finally:
        await asyncio.to_thread(standby._server.leave)


async def _copy(postgres: Postgres, standby: Postgres) -> None:
    """A base backup, with the settings of a standby."""
    sockets = parse_qs(urlsplit(postgres.url).query)["host"][0]
    standby.folder.mkdir(parents=True)
    account = account_for(postgres.folder / "postgres", program("initdb"), standby.folder.parent)
    account.own(standby.folder)
    command = (program("pg_basebackup"), "-h", sockets, "-U", "postgres", "-D", str(standby.folder / "postgres"), "-R")
    process = await asyncio.create_subprocess_exec(*account.prefix, *command, "--checkpoint=fast", "--no-sync")
    assert await process.wait() == 0


async def test_a_promoted_standby_goes_on_with_every_turn(tmp_path: Path) -> None:
    standby = Postgres(tmp_path / "standby")
    async with fifty_turns(tmp_path, partial(with_standby, standby=standby)) as site:
        os.kill(site.postgres.pid, signal.SIGQUIT)
        for gate in ("before the call", "end of text", "effect"):
            site.model.open(gate)
        connection = await asyncpg.connect(standby.url)
        await connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
        assert await connection.fetchval("SELECT pg_promote()")
        await connection.close()
        await site.model.until_reached("before the end", TURNS)
        await leases_are_renewed(site.watch)
        site.model.open("before the end")
        await until_all(site.readers, lambda reader: reader.turn.end is not None)
        await check_all_is_well(site)
        for replica in site.replicas:
            async with Client(replica.url) as client:
                assert (await client.get("/readyz")).status_code == 200
