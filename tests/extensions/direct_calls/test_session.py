"""The private parts of httpx2 and aiohttp that direct calls use behave as the calls expect."""

import anthropic
import httpx2
import openai
import pytest
from aiohttp import ClientTimeout
from yarl import URL

from tests.support.canned import canned_server
from turnstream.extensions.direct_calls.kept_open import pooled_connection
from turnstream.extensions.direct_calls.sdk_session import session_for
from turnstream.libraries.providers.transport.http import http_client


@pytest.mark.parametrize("make", [anthropic.DefaultAioHttpClient, openai.DefaultAioHttpClient])
async def test_the_session_below_an_sdk_gives_connections_of_its_pool(make: type[httpx2.AsyncClient]) -> None:
    async with canned_server() as server, http_client(make) as network:
        found = session_for(network, httpx2.URL(server.url))
        assert found is not None
        session, proxy = found
        assert (proxy, session.closed) == (None, False)
        options = {"url": URL(server.url), "timeout": ClientTimeout(), "server_hostname": None}
        first = await pooled_connection(session, "POST", options)
        assert not first.closed
        first.release()
        assert server.connections == 1
        async with session.post(server.url) as response:
            await response.read()
        assert server.connections == 1, "the call has taken the connection that was released"


async def test_a_client_over_another_transport_has_no_session() -> None:
    async with httpx2.AsyncClient() as network:
        assert session_for(network, httpx2.URL("http://127.0.0.1")) is None
