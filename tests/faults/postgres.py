"""A Postgres for one test, which may stop, start or crash it; and a pair, in which one Postgres follows the other."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psutil

from turnstream.extensions.embedded import cluster
from turnstream.extensions.embedded.account import account_for
from turnstream.extensions.embedded.server import EmbeddedPostgres

_IS_FOLLOWED = "SELECT true FROM pg_stat_replication WHERE sync_state = 'sync'"
_HAS_ALL = "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication"


class Postgres:
    """A Postgres whose `url` never changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cluster"
        # Only processes crash, and never the machine, so unsynced writes survive.
        settings = {"max_connections": "200", "wal_retrieve_retry_interval": "100ms", "fsync": "off"}
        self._server = EmbeddedPostgres(self.folder, settings)
        self.url = ""

    async def start(self) -> None:
        self.url = await asyncio.to_thread(self._server.enter)

    async def copy(self, primary: "Postgres") -> None:
        """Recreates the folder from a base backup, with the settings of a standby."""
        data = self.folder / "postgres"
        shutil.rmtree(data, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        account = account_for(primary.folder / "postgres", cluster.program("initdb"), self.folder.parent)
        account.own(self.folder)
        source = ("-h", primary.sockets, "-U", "postgres", "-D", str(data), "-R", "--checkpoint=fast", "--no-sync")
        process = await asyncio.create_subprocess_exec(
            *account.prefix, cluster.program("pg_basebackup"), *source, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    @property
    def sockets(self) -> str:
        return parse_qs(urlsplit(self.url).query)["host"][0]

    @property
    def pid(self) -> int:
        return int((self.folder / "postgres/postmaster.pid").read_text().split()[0])

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stops all processes of Postgres: connections stay open, but get no answer."""
        server = psutil.Process(self.pid)
        server.suspend()  # the server comes first, so that it starts no more processes
        everybody = [server, *server.children()]
        try:
            for process in everybody:
                with suppress(psutil.NoSuchProcess):  # the process has just exited
                    process.suspend()
            yield
        finally:
            for process in everybody:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    async def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stops Postgres, and waits for its exit. SIGINT is `pg_ctl stop -m fast`. SIGQUIT is `-m immediate`, which is
        like a crash.
        """
        os.kill(self.pid, how)
        await self.leave()

    async def leave(self) -> None:
        """Stops Postgres in order, if it runs."""
        await asyncio.to_thread(self._server.leave)


@asynccontextmanager
async def own_postgres(folder: Path) -> AsyncIterator[Postgres]:
    postgres = Postgres(folder)
    await postgres.start()
    try:
        yield postgres
    finally:
        await postgres.leave()


class Pair:
    """A primary and its synchronous standby. The two may swap roles; `url` stays the same."""

    def __init__(self, folder: Path) -> None:
        self.primary, self.standby = Postgres(folder / "one"), Postgres(folder / "other")
        self.url = ""

    async def start(self) -> None:
        await self.primary.start()
        await self._follow()
        sockets = f"{self.primary.sockets},{self.standby.sockets}"
        self.url = f"postgresql://postgres@/postgres?host={sockets}&port=5432,5432&target_session_attrs=read-write"

    async def fail_over(self, seconds: float) -> None:
        """Crashes the primary. So many seconds later the standby is promoted, and gets a standby of its own."""
        await self.primary.stop(signal.SIGQUIT)
        await asyncio.sleep(seconds)
        await self.promote()
        await self._follow()

    async def cut_off(self) -> None:
        """Cuts the standby off: it has all commits so far and receives no more, and the primary no longer waits for
        it.
        """
        async with self.primary.connected() as primary, self.standby.connected() as standby:
            await primary.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            await primary.execute("SELECT pg_reload_conf()")
            while not await primary.fetchval(_HAS_ALL):  # noqa: ASYNC110, Postgres does not notify of this
                await asyncio.sleep(0.02)
            await standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            await standby.execute("SELECT pg_reload_conf()")
            while await standby.fetchval("SELECT true FROM pg_stat_wal_receiver"):  # noqa: ASYNC110, likewise
                await asyncio.sleep(0.02)

    async def promote(self) -> None:
        self.primary, self.standby = self.standby, self.primary
        async with self.primary.connected() as connection:
            await connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            await connection.execute("SELECT pg_reload_conf()")
            assert await connection.fetchval("SELECT pg_promote()")

    async def _follow(self) -> None:
        await self.standby.copy(self.primary)
        await self.standby.start()
        async with self.primary.connected() as connection:
            await connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            await connection.execute("SELECT pg_reload_conf()")
            while not await connection.fetchval(_IS_FOLLOWED):  # noqa: ASYNC110, Postgres does not notify of this
                await asyncio.sleep(0.02)


@asynccontextmanager
async def own_pair(folder: Path) -> AsyncIterator[Pair]:
    pair = Pair(folder)
    try:
        await pair.start()
        yield pair
    finally:
        for each in (pair.standby, pair.primary):
            await each.leave()
