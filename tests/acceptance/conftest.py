from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.server_process import Server


class StartServer(Protocol):
    """Starts another replica on the test's own database, as in `await server(TURNSTREAM_DEMO_DELAY="0.05")`. The
    replica is ready.
    """

    def __call__(self, **settings: str) -> Awaitable[Server]: ...


@pytest.fixture
async def server(database_url: str, tmp_path: Path) -> AsyncIterator[StartServer]:
    started: list[Server] = []

    async def start(**settings: str) -> Server:
        new = Server(database_url, tmp_path, settings)
        started.append(new)
        await new.start()
        return new

    yield start
    for one in started:
        await one.close()
