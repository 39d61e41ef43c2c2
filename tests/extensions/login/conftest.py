"""A server with a login, and the identity provider of the login."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from tests.support.http_server import Server, serving
from tests.support.openid_issuer import CLIENT, SECRET, CookieBrowser, OpenIdIssuer, providing
from tests.support.server_process import free_port

ServeLogin = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture(autouse=True)
def no_session_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the cache of sessions, so that each request reads its session from Postgres."""
    monkeypatch.setattr("turnstream.extensions.login.sessions.BELIEVED", 0)
    monkeypatch.setattr("turnstream.api.identity.stored.BELIEVED", 0)


@pytest_asyncio.fixture(loop_scope="session")
async def issuer() -> AsyncIterator[OpenIdIssuer]:
    async with providing() as issuer:
        yield issuer


@pytest.fixture
def serve(issuer: OpenIdIssuer, database_url: str) -> ServeLogin:
    @asynccontextmanager
    async def serve(**settings: Any) -> AsyncIterator[Server]:
        port = free_port()
        base = f"http://127.0.0.1:{port}"
        issuer.redirect_uris += [f"{base}/login/callback/main", f"{base}/login/callback/other"]
        given = {
            "login_url": base,
            "login_issuer": issuer.url,
            "login_client_id": CLIENT,
            "login_client_secret": SECRET,
            "login_groups_claim": "groups",
            "port": port,
            **settings,
        }
        async with serving(database_url, **given) as server:
            yield server

    return serve


@pytest_asyncio.fixture(loop_scope="session")
async def site(serve: ServeLogin) -> AsyncIterator[Server]:
    async with serve() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def browser(site: Server) -> AsyncIterator[CookieBrowser]:
    async with CookieBrowser(site.url) as browser:
        yield browser
