from collections.abc import AsyncIterator

import pytest_asyncio
from anthropic import AsyncAnthropic

from tests.support.http_client import Client
from tests.support.http_server import Server


@pytest_asyncio.fixture(loop_scope="session")
async def client(server: Server, api: Client) -> AsyncIterator[AsyncAnthropic]:
    """Yields Anthropic's SDK, with a token of the owner of `api`."""
    token = await server.token(api.owner)
    async with AsyncAnthropic(base_url=server.url, api_key=token, max_retries=0) as client:
        yield client
