"""Finds the aiohttp session that an SDK's client uses, through a private part of httpx2 and the transport that both
SDKs share. `tests/extensions/direct_calls/test_session.py` checks these two parts; `pyproject.toml` bounds the version
of httpx2.
"""

from typing import Protocol, runtime_checkable

import aiohttp
import httpx2


@runtime_checkable
class _AioHttp(Protocol):
    """The transport over aiohttp that the SDKs use."""

    client: aiohttp.ClientSession | None
    proxy: httpx2.Proxy | None

    def get_client(self) -> aiohttp.ClientSession: ...


def session_for(
    network: httpx2.AsyncClient, url: httpx2.URL
) -> tuple[aiohttp.ClientSession, httpx2.Proxy | None] | None:
    """Returns the session through which the client sends a request to `url`, and the proxy of this session. Returns
    None if the client has another transport.
    """
    transport = network._transport_for_url(url)  # respects a proxy, too
    if not isinstance(transport, _AioHttp):
        return None
    if transport.client is None:
        transport.client = transport.get_client()
    return transport.client, transport.proxy
