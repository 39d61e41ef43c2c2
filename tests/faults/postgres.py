"""A Postgres of a test's own, which it may stop and start, or crash."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

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
