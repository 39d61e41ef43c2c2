"""A Postgres server (DATABASE_URL, or an embedded one), and in it a new database for the benchmark."""

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psutil

from tests.bench.processes import TOOLS_CPU, family, on_cpu, own_cpu_seconds
from turnstream.extensions.embedded.server import embedded_postgres


@dataclass(frozen=True, slots=True)
class Postgres:
    url: str
    version: str
    postmaster: psutil.Process | None  # None if Postgres runs on another machine

    def cpu_seconds(self) -> float:
        """Returns the CPU time of running and ended backends, or 0 if Postgres runs on another machine."""
        if self.postmaster is None:
            return 0.0
        ended = self.postmaster.cpu_times()
        living = sum(own_cpu_seconds(each) for each in family(self.postmaster))
        return living + ended.children_user + ended.children_system

    def backend_seconds(self) -> float:
        """Returns the CPU time of the running backends of this database, or 0 if Postgres runs on another machine."""
        if self.postmaster is None:
            return 0.0
        name = urlsplit(self.url).path.removeprefix("/")
        return sum(own_cpu_seconds(each) for each in family(self.postmaster) if serves(each, name))


def serves(process: psutil.Process, database: str) -> bool:
    with suppress(psutil.Error):
        return database in " ".join(process.cmdline()).split()
    return False


@contextmanager
def bench_database(folder: Path) -> Iterator[Postgres]:
    with server_url(folder) as server, new_database(server) as made:
        yield made


@contextmanager
def new_database(server: str) -> Iterator[Postgres]:
    """Creates a database on the server. `server` is the address of any database there."""
    name = f"bench_{secrets.token_hex(4)}"
    asyncio.run(execute(server, f"CREATE DATABASE {name}"))
    try:
        yield asyncio.run(describe(server, name))
    finally:
        asyncio.run(execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


@contextmanager
def server_url(folder: Path) -> Iterator[str]:
    given = os.environ.get("DATABASE_URL")
    if given:
        yield given.replace("postgresql+asyncpg://", "postgresql://")
        return
    with asyncio.Runner() as runner, on_cpu(TOOLS_CPU):
        embedded = AsyncExitStack()
        url = runner.run(embedded.enter_async_context(embedded_postgres(folder)))
        try:
            yield url
        finally:
            runner.run(embedded.aclose())


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url, timeout=30, command_timeout=60)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def describe(server: str, name: str) -> Postgres:
    connection = await asyncpg.connect(server, timeout=30, command_timeout=60)
    try:
        version = await connection.fetchval("SHOW server_version")
        postmaster = await find_postmaster(connection)
    finally:
        await connection.close()
    parts = urlsplit(server)
    return Postgres(urlunsplit(parts._replace(path=f"/{name}")), version, postmaster)


async def find_postmaster(connection: "asyncpg.Connection[asyncpg.Record]") -> psutil.Process | None:
    """Returns the parent of this connection's backend, or None if Postgres runs on another machine."""
    with suppress(psutil.Error):
        backend = psutil.Process(await connection.fetchval("SELECT pg_backend_pid()"))
        postmaster = backend.parent()
        if postmaster is not None and postmaster.name().startswith("postgres"):
            return postmaster
    return None
