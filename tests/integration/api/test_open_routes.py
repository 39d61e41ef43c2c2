"""Which routes answer without a credential, and what they show."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.integration.proxy import proxied
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from turnstream.api.dispatch import RouteWithHeader
from turnstream.extensions.workers.neighbours import FromNeighbours

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOKEN = "the token of Prometheus"
REFUSED = (401, "Bearer")
# The routes that answer without a credential where the server has a token for its metrics, and the reasons.
OPEN = {
    "GET /healthz": "probes carry no credential; the answer is one word",
    "GET /readyz": "probes carry no credential; the answer is one word, or one of two problems",
    "GET /openapi.json": "all servers of a version have the same, but for the prefix of their address",
    "GET /": "a file of the page, the same for everybody",
    "GET /admin": "a file of the page, the same for everybody",
    "GET /approvals/{token}": "approval links carry their own signature; without it the answer is one sentence",
    "POST /approvals/{token}": "the same",
    "GET /sign-in/{turn}/{secret}": "links of sign-ins carry a secret; without it the answer is one sentence",
    "POST /sign-in/{turn}/{secret}": "the same",
    "GET /sign-in/callback": "an issuer sends browsers here; without a state the answer is one sentence",
    "GET /sign-in/client.json": "issuers read what the client is",
    "GET /api/session": "the page asks it where people sign in; without a session it has the issuers alone",
    "GET /login": "a browser begins a login here, and holds nothing yet",
    "GET /login/callback/{issuer}": "an issuer sends browsers here; without what the browser keeps nobody is signed in",
    "POST /login/backchannel/{issuer}": "an issuer ends sessions here, by a token that it has signed",
    "GET /shared/{secret}": "a file of the page, the same for everybody",
    "GET /api/shared/{secret}": "links to chats carry a secret; without it the answer is a problem",
    "GET /api/shared/{secret}/files/{upload}": "the same",
    "GET /static/{path:path}": "files of the page, the same for everybody",
    "* /v1/{call:path}": "addresses that are no call: a problem that repeats the address",
    "* /v1/files": "the same, with Anthropic's header",
    "* /v1/files/{call:path}": "the same",
}


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url, metrics_token=TOKEN) as server:
        yield server


@pytest.mark.extensions("admin", "openai_api")
async def test_every_route_needs_a_credential_or_is_in_the_list_of_open_ones(guarded: Server) -> None:
    token = await guarded.token("somebody")
    limited = [each for each in guarded.app.routes if isinstance(each, RouteWithHeader)]
    plain = [route for route in guarded.app.routes if isinstance(route, Route)]
    routes: list[tuple[str, str, dict[str, str]]]
    routes = [(method, route.path, {}) for route in plain for method in methods(route)]
    routes += [(method, each.route.path, {each.header: "1"}) for each in limited for method in methods(each.route)]
    assert len(guarded.app.routes) == len({route.path for route in plain}) + len(limited)
    refused = set()
    async with httpx2.AsyncClient(base_url=guarded.url) as nobody:
        for method, route, header in routes:
            path = re.sub(r"{[^}]+}", uuid4().hex, route)
            answers = [
                await nobody.request("GET" if method == "*" else method, path, headers={**header, **headers})
                for headers in ({}, {"Authorization": f"Bearer {token}x"})
            ]
            if {(answer.status_code, answer.headers.get("www-authenticate")) for answer in answers} == {REFUSED}:
                refused.add(f"{method} {route}")
    assert {f"{method} {route}" for method, route, _ in routes} - refused == OPEN.keys()
    assert len(refused) > 60


def methods(route: Route) -> set[str]:
    return set(route.methods or {"*"}) - {"HEAD"}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_the_metrics_are_shown_for_their_token_alone(guarded: Server, document: Document, method: str) -> None:
    admin = await guarded.token("operator", "read", "admin")
    async with Client(guarded.url, document) as client:
        for wrong in (
            *("", "Bearer", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"),
            *(f"Bearer {TOKEN.upper()}", f"Bearer {admin}"),
        ):
            refused = await client.request(method, "/metrics", headers=[(b"Authorization", wrong.encode())])
            assert (refused.status_code, refused.headers["www-authenticate"]) == REFUSED, wrong
            assert "turnstream_" not in refused.text
        shown = await client.request(method, "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (shown.status_code, "turnstream_turns_running" in shown.text) == (200, method == "GET")
        assert (await client.get("/api/chats", headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 401


async def test_a_process_of_the_same_server_needs_no_token_for_the_metrics(guarded: Server) -> None:
    app = FromNeighbours(guarded.app, Path("socket"))

    async def by_the_socket(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "server": ("socket", None)}, receive, send)

    transport = httpx2.ASGITransport(by_the_socket)
    async with httpx2.AsyncClient(transport=transport, base_url="http://neighbour") as neighbour:
        assert "turnstream_turns_running" in (await neighbour.get("/metrics")).text


async def test_probes_need_no_token_and_show_one_word(guarded: Server) -> None:
    await guarded.token("somebody")
    async with httpx2.AsyncClient(base_url=guarded.url) as nobody:
        for path, word in {"/healthz": "ok", "/readyz": "ready", "/readyz?exclude=postgres": "ready"}.items():
            answer = await nobody.get(path)
            assert (answer.status_code, answer.text) == (200, f"{word}\n")
        services = guarded.services
        guarded.app.state.services = replace(services, is_ready=lambda: False)
        stopping = await nobody.get("/readyz")
        guarded.app.state.services = services
    assert (stopping.status_code, details_of(stopping)) == (503, "This server is stopping.")


async def test_a_probe_shows_nothing_of_the_postgres_that_is_away(database_url: str) -> None:
    async with proxied(database_url) as (url, proxy), serving(url) as server:
        proxy.cut()
        async with httpx2.AsyncClient(base_url=server.url) as nobody:
            assert (await nobody.get("/healthz")).text == "ok\n"
            away = await nobody.get("/readyz")
    assert away.status_code == 503
    for secret in re.findall(r"\w+", url.partition("://")[2]):
        assert secret not in details_of(away)


def details_of(answer: httpx2.Response) -> str:
    """The one member of a problem that is not the same for all of its kind."""
    problem = answer.json()
    assert problem.keys() == {"type", "title", "status", "code", "detail", "request_id"}
    detail: str = problem["detail"]
    return detail
