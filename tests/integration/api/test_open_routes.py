"""The routes that answer without a credential, and their content."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import asyncpg
import httpx2
import pytest
import pytest_asyncio
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.integration.proxy import proxied
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.locks import Locker
from tests.support.openapi_document import Document
from turnstream.api.dispatch import RouteWithHeader
from turnstream.extensions.jobs.result_rows import GET_TURN_OF_JOB
from turnstream.extensions.mcp.connection import McpTiming
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.servers import McpServers
from turnstream.extensions.mcp.sign_ins import GET_LINKED_ASK, GET_PENDING
from turnstream.extensions.schedules.trigger_store import FIND_TRIGGER
from turnstream.extensions.sharing.shares import FIND_SHARE
from turnstream.extensions.workers.neighbours import FromNeighbours
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.storage import probe
from turnstream.storage.database import Statement
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOKEN = "the token of Prometheus"
REFUSED = (401, "Bearer")
# The routes that answer without a credential on a server whose metrics need a token, and the reason for each.
OPEN = {
    "GET /healthz": "probes carry no credential; the answer is one word",
    "GET /readyz": "probes carry no credential; the answer is one word, or one of two problems",
    "GET /openapi.json": "all servers of a version have the same, but for the prefix of their address",
    "GET /": "a file of the page, the same for everybody",
    "GET /offline.js": "a file of the page, the same for everybody",
    "GET /admin": "a file of the page, the same for everybody",
    "GET /approvals/{token}": "approval links carry their own signature; without it the answer is one sentence",
    "POST /approvals/{token}": "the same",
    "GET /sign-in/{turn}/{secret}": "links of sign-ins carry a secret; without it the answer is one sentence",
    "POST /sign-in/{turn}/{secret}": "the same",
    "GET /sign-in/callback": "an issuer sends browsers here; without a state the answer is one sentence",
    "GET /sign-in/client.json": "issuers read what the client is",
    "GET /mcp-app": "an empty frame, the same for everybody, under a policy of the address",
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
# Calls that look up an invented secret in Postgres, with the statement that does it.
LOOK_UP = {
    "GET /sign-in/{turn}/{secret}": GET_LINKED_ASK,
    "POST /sign-in/{turn}/{secret}": GET_LINKED_ASK,
    "GET /sign-in/callback": GET_PENDING,
    "GET /api/shared/{secret}": FIND_SHARE,
    "GET /api/shared/{secret}/files/{upload}": FIND_SHARE,
    "POST /api/jobs/{job}/result": GET_TURN_OF_JOB,
    "POST /api/triggers/{trigger}": FIND_TRIGGER,
}
WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND left(query, 500) = ANY($1)
"""
BODIES = {"POST /api/jobs/{job}/result": {"output": "forged"}}
MANY = 8  # simultaneous requests


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


async def test_anonymous_requests_share_two_of_ten_connections(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other anonymous requests are refused, and owners are served as before."""
    monkeypatch.setattr("turnstream.storage.database.PATIENCE", 0.0)
    server = McpServer("calendar", url="http://127.0.0.1:9/mcp", oauth=True)
    sources = [McpServers([server], McpTiming(connect_timeout=0.01))]
    lookups = [each.sql[:500] for each in LOOK_UP.values()]
    holder, watcher = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    locker = Locker(holder, watcher)
    looked_up = set()
    async with (
        sources[0],
        serving(
            database_url,
            Toolset([], sources=sources),
            poll_interval=60,
            sharing=True,
            sign_in_url="http://turnstream.test",
            master_key=new_master_key(),
        ) as site,
        Client(site.url, None, await site.token("ada"), "ada") as ada,
        httpx2.AsyncClient(base_url=site.url, timeout=150, trust_env=False) as nobody,
    ):
        for call in {*OPEN, *LOOK_UP, "GET /readyz", "GET /metrics"}:
            method, _, route = call.partition(" ")
            async with locker.holding("LOCK TABLE shares, jobs, asks, sign_ins, schedules"):
                requests = [asyncio.create_task(invented(nobody, method, route)) for _ in range(MANY)]
                waiting, done = 0, 0
                # Two requests wait for Postgres, and a third waits for a connection.
                while done < MANY and not (waiting >= 2 and done >= MANY - 3) and waiting <= 2:
                    await asyncio.sleep(0.002)
                    waiting = await watcher.fetchval(WAITING, lookups)
                    done = sum(each.done() for each in requests)
                assert waiting <= 2, call
                if waiting:
                    looked_up.add(call)
                    assert (await ada.post("/api/chats", json={})).status_code == 201, call
            answers = await asyncio.gather(*requests)
            if call in looked_up:
                assert {answer.status_code for answer in answers} > {503}, call
                assert {answer.json()["code"] for answer in answers if answer.status_code == 503} == {"overloaded"}
    await holder.close()
    await watcher.close()
    assert looked_up == LOOK_UP.keys()


async def invented(nobody: httpx2.AsyncClient, method: str, route: str) -> httpx2.Response:
    path = re.sub(r"{[^}]+}", lambda _: str(uuid4()), route)
    query = f"?state={uuid4().hex}&code=c" if route.endswith("/callback") else ""
    headers = {"Authorization": f"Bearer {uuid4().hex}"} if route == "/api/jobs/{job}/result" else {}
    if route == "/api/triggers/{trigger}":
        headers = {"webhook-id": uuid4().hex}
    return await nobody.request(
        "GET" if method == "*" else method, path + query, headers=headers, json=BODIES.get(f"{method} {route}")
    )


async def test_probes_at_once_use_one_connection(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.storage.probe.SELECT_ONE", Statement("SELECT count(*) FROM documents"))
    holder, watcher = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    locker, most = Locker(holder, watcher), 0
    async with (
        serving(database_url) as site,
        httpx2.AsyncClient(base_url=site.url, timeout=150, trust_env=False) as nobody,
    ):
        async with locker.holding("LOCK TABLE documents"):
            probes = [asyncio.create_task(nobody.get("/readyz")) for _ in range(MANY)]
            while not all(each.done() for each in probes):
                most = max(most, await watcher.fetchval(WAITING, [probe.SELECT_ONE.sql]))
                await asyncio.sleep(0.002)
        assert {each.result().status_code for each in probes} == {503}
        assert (await nobody.get("/readyz")).status_code == 200
    await holder.close()
    await watcher.close()
    assert most == 1


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
    """Returns the detail, the only member that differs between problems with the same code."""
    problem = answer.json()
    assert problem.keys() == {"type", "title", "status", "code", "detail", "request_id"}
    detail: str = problem["detail"]
    return detail
