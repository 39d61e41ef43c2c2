"""A Postgres of a test's own, which it may stop and start, or crash."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil

from app.storage.embedded.server import EmbeddedPostgres


class Postgres:
    """`url` stays the same for ever."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cluster"
        self._server = EmbeddedPostgres(self.folder, {"max_connections": "200"})
        self.url = ""

    async def start(self) -> None:
        self.url = await asyncio.to_thread(self._server.enter)

    @property
    def pid(self) -> int:
        return int((self.folder / "postgres/postmaster.pid").read_text().split()[0])

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All its processes stand still: connections stay open, and nothing is answered."""
        server = psutil.Process(self.pid)
        server.suspend()  # first: it starts no others then
        everybody = [server, *server.children()]
        try:
            for process in everybody:
                with suppress(psutil.NoSuchProcess):  # it was about to end
                    process.suspend()
            yield
        finally:
            for process in everybody:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    async def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is `pg_ctl stop -m fast`, SIGQUIT is `-m immediate`: a crash, but for the name. It is gone then."""
        os.kill(self.pid, how)
        await asyncio.to_thread(self._server.leave)


@asynccontextmanager
async def own_postgres(folder: Path) -> AsyncIterator[Postgres]:
    postgres = Postgres(folder)
    await postgres.start()
    try:
        yield postgres
    finally:
        await asyncio.to_thread(postgres._server.leave)
