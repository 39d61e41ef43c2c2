"""The aiohttp session below an SDK's client: reached through a private part of httpx2, and through the transport of
both SDKs. `tests/extensions/direct_calls/test_session.py` checks both; `pyproject.toml` bounds the version.
"""

from typing import Protocol, runtime_checkable

import aiohttp
import httpx2


@runtime_checkable
class _AioHttp(Protocol):
    """The SDKs' transport over aiohttp."""

    client: aiohttp.ClientSession | None
    proxy: httpx2.Proxy | None

    def get_client(self) -> aiohttp.ClientSession: ...


def session_for(
    network: httpx2.AsyncClient, url: httpx2.URL
) -> tuple[aiohttp.ClientSession, httpx2.Proxy | None] | None:
    """Returns the session with which the client sends a request to `url`, and its proxy. None for a client with another
    transport.
    """
    transport = network._transport_for_url(url)  # also for a proxy
    if not isinstance(transport, _AioHttp):
        return None
    if transport.client is None:
        transport.client = transport.get_client()
    return transport.client, transport.proxy
