from collections.abc import AsyncIterator

import pytest

from app.storage.database import connect
from tests.support.harness import Harness


@pytest.fixture
async def harness(database_url: str) -> AsyncIterator[Harness]:
    """A fresh database, and replicas for the asking."""
    async with connect(database_url, size=10) as database:
        yield Harness(database_url, database)
