from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import httpx2
import pytest_asyncio

from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.locks import Locker
from tests.support.openapi_document import Document

NewOwner = Callable[[], Awaitable[Client]]

shared = pytest_asyncio.fixture(scope="session", loop_scope="session")


@shared
async def server(postgres_server: str, template_database: str) -> AsyncIterator[Server]:
    """One server with tokens for all tests of the run. Every test has its own owner."""
    name = f"test_{uuid4().hex}"
    connection = await asyncpg.connect(postgres_server)
    try:
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template_database}")
        url = urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
        async with serving(url, self_service=True, archive_downloads=True, sharing=True) as server:
            await server.token("first")
            yield server
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


@shared
async def document(server: Server) -> Document:
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        return Document((await client.get("/openapi.json")).json())


@pytest_asyncio.fixture(loop_scope="session")
async def new_owner(server: Server, document: Document) -> AsyncIterator[NewOwner]:
    """Makes clients, each with a new owner."""
    clients: list[Client] = []

    async def new() -> Client:
        owner = f"owner {uuid4()}"
        clients.append(Client(server.url, document, await server.token(owner), owner))
        return clients[-1]

    yield new
    for client in clients:
        await client.aclose()


@pytest_asyncio.fixture(loop_scope="session")
async def api(new_owner: NewOwner) -> Client:
    return await new_owner()


@pytest_asyncio.fixture(loop_scope="session")
async def database(server: Server) -> AsyncIterator[Locker]:
    """A second connection to the server's database, which a test may use to hold locks."""
    connection = await asyncpg.connect(server.database_url)
    watcher = await asyncpg.connect(server.database_url)
    yield Locker(connection, watcher)
    await connection.close()
    await watcher.close()
