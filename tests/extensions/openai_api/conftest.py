from collections.abc import AsyncIterator

import pytest_asyncio
from openai import AsyncOpenAI

from tests.support.http_client import Client
from tests.support.http_server import Server


@pytest_asyncio.fixture(loop_scope="session")
async def client(server: Server, api: Client) -> AsyncIterator[AsyncOpenAI]:
    """Yields OpenAI's SDK, with a token of the owner of `api`."""
    token = await server.token(api.owner)
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=token, max_retries=0) as client:
        yield client
