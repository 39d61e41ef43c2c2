"""Postgres fails over: the primary dies, its standby is promoted, and both stand in DATABASE_URL."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from app.storage.embedded.account import account_for
from app.storage.embedded.cluster import program
from tests.faults.fifty_turns import fifty_turns, finish
from tests.faults.postgres import Postgres, own_postgres

pytestmark = pytest.mark.timeout(300)


@asynccontextmanager
async def with_standby(folder: Path) -> AsyncIterator[tuple[Postgres, Postgres, str]]:
    """A primary, its standby for whom every commit waits, and the URL of both."""
    async with own_postgres(folder / "primary") as primary:
        standby = Postgres(folder / "standby")
        await _copy(primary, standby)
        await standby.start()
        try:
            connection = await asyncpg.connect(primary.url)
            await connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            await connection.execute("SELECT pg_reload_conf()")
            while await connection.fetchval("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await connection.close()
            hosts = ",".join(parse_qs(urlsplit(each.url).query)["host"][0] for each in (primary, standby))
            url = f"postgresql://postgres@/postgres?host={hosts}&port=5432,5432&target_session_attrs=read-write"
            yield primary, standby, url
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


async def _promote(standby: Postgres) -> None:
    connection = await asyncpg.connect(standby.url)
    await connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
    assert await connection.fetchval("SELECT pg_promote()")
    await connection.close()


async def test_a_promoted_standby_goes_on_with_every_turn(tmp_path: Path) -> None:
    async with with_standby(tmp_path) as (primary, standby, url), fifty_turns(url, tmp_path) as site:
        os.kill(primary.pid, signal.SIGQUIT)
        await _promote(standby)
        await finish(site)
