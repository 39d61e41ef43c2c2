"""The session of aiohttp below an SDK's client: by a private part of httpx2, and by the transport that both SDKs bring.
`tests/extensions/direct_calls/test_session.py` holds what they do; `pyproject.toml` bounds the version.
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
    """The session by which the client sends a request to `url`, with its proxy. None for a client over another one."""
    transport = network._transport_for_url(url)  # also a proxy's
    if not isinstance(transport, _AioHttp):
        return None
    if transport.client is None:
        transport.client = transport.get_client()
    return transport.client, transport.proxy
