"""Fixtures that the tests of schedules and of triggers share."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from tests.support.http_server import Server


@pytest.fixture
async def client(own: Server) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=own.url, trust_env=False) as client:
        yield client
