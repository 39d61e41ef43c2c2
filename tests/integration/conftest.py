from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.harness import Harness
from turnstream.storage.database import connect
from turnstream.storage.runs import attempts


@pytest.fixture(autouse=True)
def attempts_are_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Gives attempts the numbers 1, 2, 3, …, which a test can name. `undo` restores the random numbers."""
    with monkeypatch.context() as patch:
        patch.setattr(attempts, "draw_step", lambda: 1)
        yield patch


@pytest.fixture
async def harness(database_url: str) -> AsyncIterator[Harness]:
    """A fresh database, in which a test starts the replicas that it needs."""
    async with connect(database_url, size=10) as database:
        yield Harness(database_url, database)
