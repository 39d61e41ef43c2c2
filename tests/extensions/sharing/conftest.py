"""A server with sharing, and two of its owners."""

from collections.abc import AsyncIterator

import pytest

from tests.support.http_client import Client
from tests.support.http_server import Server, serving

# A tool that the client runs.
LOOK = {"type": "client", "name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url, sharing=True) as server:
        yield server


@pytest.fixture
async def ada(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url, None, await server.token("ada"), "ada") as client:
        yield client


@pytest.fixture
async def bob(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url, None, await server.token("bob"), "bob") as client:
        yield client
