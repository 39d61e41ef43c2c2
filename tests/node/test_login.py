"""Sign-in on the page with a certified OpenID provider from npm."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx2
import pytest

from tests.support.http_server import Server, serving
from tests.support.server_process import free_port

pytestmark = [pytest.mark.extensions("login"), pytest.mark.asyncio]
CLIENT, SECRET = "turnstream", "the secret of the client"


@asynccontextmanager
async def signing_in(node: str, oidc: Path, database_url: str) -> AsyncIterator[Server]:
    """Yields a server at which people sign in with the provider."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    provider = await asyncio.create_subprocess_exec(
        node, "issuer.mjs", CLIENT, SECRET, base, cwd=oidc, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert provider.stdout is not None
        issuer = (await provider.stdout.readline()).decode().strip()
        given: dict[str, Any] = {
            "login_url": base,
            "login_issuer": issuer,
            "login_client_id": CLIENT,
            "login_client_secret": SECRET,
            "login_scope": "openid profile groups",
            "login_groups_claim": "groups",
            "login_scopes": "none",
            "login_roles": "staff=read chat approve admin, guest=read",
        }
        async with serving(database_url, port=port, **given) as server:
            yield server
    finally:
        provider.kill()
        await provider.wait()


async def sign_in(browser: httpx2.AsyncClient, base: str, person: str) -> None:
    """Submits the provider's forms until the provider redirects to the server."""
    page = await browser.get(f"{base}/login")
    while not str(page.url).startswith(base):
        assert page.status_code == 200, page.text
        action = re.search(r'<form[^>]*action="([^"]+)"', page.text)
        assert action is not None
        fields = dict(re.findall(r'<input[^>]*name="([^"]+)"[^>]*value="([^"]*)"', page.text))
        if 'name="login"' in page.text:
            fields |= {"login": person, "password": "any"}
        page = await browser.post(urljoin(str(page.url), html.unescape(action[1])), data=fields)
    assert page.status_code == 200, page.text


async def test_a_person_signs_in_with_the_rights_of_the_groups_and_signs_out_at_both(
    node: str, oidc: Path, database_url: str
) -> None:
    async with (
        signing_in(node, oidc, database_url) as server,
        httpx2.AsyncClient(follow_redirects=True, trust_env=False, timeout=150) as browser,
    ):
        for person, scopes in (("grace", ["read", "chat", "approve", "admin"]), ("ada", ["read"])):
            await sign_in(browser, server.url, person)
            session = (await browser.get(f"{server.url}/api/session")).json()["session"]
            assert (session["owner"], session["name"], session["scopes"]) == (person, f"Person {person}", scopes)
            own = {"Sec-Fetch-Site": "same-origin"}
            posted = await browser.post(f"{server.url}/api/chats", json={}, headers=own)
            assert posted.status_code == (201 if "chat" in scopes else 403)
            ended = (await browser.delete(f"{server.url}/api/session", headers=own)).json()
            assert (await browser.get(f"{server.url}/api/me")).status_code == 401
            # The provider asks whether its own session should end too, and then redirects the browser.
            question = await browser.get(ended["logout_url"])
            action = re.search(r'action="([^"]+)"', question.text)
            assert action is not None
            xsrf = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', question.text))
            back = await browser.post(html.unescape(action[1]), data={**xsrf, "logout": "yes"})
            assert str(back.url) == f"{server.url}/"


async def test_a_person_who_refuses_gets_a_message_about_that(node: str, oidc: Path, database_url: str) -> None:
    async with (
        signing_in(node, oidc, database_url) as server,
        httpx2.AsyncClient(follow_redirects=True, trust_env=False, timeout=150) as browser,
    ):
        page = await browser.get(f"{server.url}/login")
        refusal = re.search(r'href="([^"]+/abort)"', page.text)
        assert refusal is not None, page.text
        page = await browser.get(urljoin(str(page.url), html.unescape(refusal[1])))
        assert page.status_code == 403
        assert "access_denied" in page.text
        assert (await browser.get(f"{server.url}/api/session")).json()["session"] is None
