"""Requests from pages of other origins, and tokens in the address for browsers that cannot send headers. Both are
disabled by default.
"""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio

from tests.support.http_client import Client, said
from tests.support.http_server import Server, serving
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.domain.identity import Identity
from turnstream.extensions.browsers.origins import allowed_origins
from turnstream.extensions.browsers.settings import BrowserSettings
from turnstream.main import create_app
from turnstream.storage.owners.tokens import Tokens

pytestmark = pytest.mark.asyncio(loop_scope="session")

ORIGIN = "https://app.example"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,idempotency-key,x-stainless-lang",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(postgres_server: str, shared_database_url: str) -> AsyncIterator[Server]:
    named: dict[str, Any] = {"cors_origins": f"{ORIGIN}, http://localhost:5173", "cors_credentials": True}
    async with serving(shared_database_url, url_tokens=True, token_cookie="session", **named) as server:
        await server.token("first")
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def ada(shared: Server) -> AsyncIterator[Client]:
    async with Client(shared.url, None, await shared.token("ada"), "ada") as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def browser(shared: Server) -> AsyncIterator[httpx2.AsyncClient]:
    """An HTTP client that sends no token."""
    async with httpx2.AsyncClient(base_url=shared.url, trust_env=False, timeout=150) as client:
        yield client


async def exchanged(client: Client, **wanted: Any) -> str:
    return str((await client.json("POST", "/api/tokens", json=wanted))["token"])


async def test_by_default_no_answer_is_for_pages_of_other_origins(api: Client) -> None:
    for headers in ({"Origin": ORIGIN}, {"Origin": ORIGIN, **PREFLIGHT}):
        method = "OPTIONS" if len(headers) > 1 else "GET"
        answer = await api.request(method, "/api/chats", headers=headers)
        assert answer.status_code == (405 if method == "OPTIONS" else 200)
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_by_default_no_token_is_taken_from_an_address_or_a_cookie(api: Client, server: Server) -> None:
    turn, token = await api.say(await api.chat()), await exchanged(api, scopes=["read"])
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=150) as client:
        assert (await client.get(f"{turn.stream_url}?access_token={token}")).status_code == 401
        assert (await client.get("/api/chats", headers={"Cookie": f"session={token}"})).status_code == 401


async def test_a_named_origin_may_ask_and_sees_the_headers_that_it_needs(
    ada: Client, browser: httpx2.AsyncClient
) -> None:
    allowed = await browser.request("OPTIONS", "/api/turns", headers={"Origin": ORIGIN, **PREFLIGHT})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    assert allowed.headers["access-control-allow-credentials"] == "true"
    assert set(PREFLIGHT["Access-Control-Request-Headers"].split(",")) <= set(
        allowed.headers["access-control-allow-headers"].split(",")
    )
    made = await ada.post("/api/turns", json=said("Hi"), headers={"Origin": ORIGIN})
    assert made.status_code == 201
    exposed = {name.strip().lower() for name in made.headers["access-control-expose-headers"].split(",")}
    assert {"location", "retry-after", "etag", "turnstream-resume", "www-authenticate", "x-request-id"} <= exposed
    assert "origin" in made.headers["vary"].lower()
    refused = await browser.get("/api/chats", headers={"Origin": ORIGIN})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, ORIGIN)


async def test_an_origin_that_is_not_named_gets_nothing(ada: Client, browser: httpx2.AsyncClient) -> None:
    for origin in ("https://evil.example", f"{ORIGIN}.evil.example", "http://app.example", f"{ORIGIN}:444", "null"):
        answer = await browser.request("OPTIONS", "/api/turns", headers={"Origin": origin, **PREFLIGHT})
        assert answer.status_code == 400
        assert "access-control-allow-origin" not in answer.headers
        answer = await ada.get("/api/chats", headers={"Origin": origin})
        assert "access-control-allow-origin" not in answer.headers
        assert "origin" in answer.headers["vary"].lower(), "no cache keeps it for a page that is named"


async def test_a_failure_of_the_server_is_shown_to_the_page_too(
    ada: Client, shared: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("turnstream.api.chats.identity_of", breaks, raising=False)
    monkeypatch.setattr("turnstream.api.chats.services_and_owner", breaks)
    answer = await ada.get("/api/chats", headers={"Origin": ORIGIN})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (500, ORIGIN)
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_an_event_source_sends_a_token_that_only_reads_in_its_address(
    ada: Client, browser: httpx2.AsyncClient, shared: Server, caplog: pytest.LogCaptureFixture
) -> None:
    turn = await ada.say(await ada.chat())
    chat, path = turn.assistant["chat_id"], turn.stream_url
    token = await exchanged(ada, chat=chat, scopes=["read"])
    answer = await browser.get(f"{path}?access_token={token}&cursor=&_x=%C3%BC")
    assert (answer.status_code, "turn_complete" in answer.text) == (200, True)
    writes = await exchanged(ada, chat=chat)
    stored = await Tokens(shared.services.storage.database).create(
        f"reader {uuid4()}", Identity("ada", frozenset({"read"}))
    )
    refusals = {
        f"{path}?access_token={writes}": "must only read",
        f"{path}?access_token={stored}": "short-lived",
        f"{path}?access_token={token[:-1]}": "is unknown here",
        f"{path}?access_token=": "Send `Authorization",
        f"/api/chats/{chat}?access_token={token}": "streams alone",
        f"/api/stream?access_token={token}": "",
    }
    for address, reason in refusals.items():
        answer = await browser.get(address)
        assert answer.status_code == (401 if reason else 403), address
        assert reason in answer.json()["detail"]
        assert token not in answer.text
    assert (await browser.post(f"/api/chats/{chat}/turns?access_token={token}", json=said("x"))).status_code == 401
    assert token not in caplog.text


async def test_the_token_of_an_address_is_in_no_line_of_a_log(ada: Client, shared: Server) -> None:
    """The test's application logs the query when the response starts, as the access log of a server does."""
    turn = await ada.say(await ada.chat())
    token, seen = await exchanged(ada, scopes=["read"]), list[Any]()

    async def logging(scope: Any, receive: Any, send: Any) -> None:
        async def logged(message: Any) -> None:
            seen.append(scope["query_string"])
            await send(message)

        await shared.app(scope, receive, logged)

    transport = httpx2.ASGITransport(app=logging)
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
        query = f"cursor=1-0-0&access_token={token}"
        assert (await client.get(f"{turn.stream_url}?{query}")).status_code == 200
    assert set(seen) == {b"cursor=1-0-0"}


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("GET", {"Origin": ORIGIN}, 200),
        ("GET", {"Origin": "https://evil.example"}, 401),
        ("POST", {}, 401),
        ("POST", {"Origin": ORIGIN}, 201),
        ("POST", {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-site"}, 401),
        ("POST", {"Origin": "https://turnstream.example", "Sec-Fetch-Site": "same-origin"}, 201),
    ],
)
async def test_the_cookie_counts_for_pages_of_this_origin_and_of_those_named(
    ada: Client, browser: httpx2.AsyncClient, method: str, headers: dict[str, str], status: int
) -> None:
    cookie = {"Cookie": f"other=1; session={await exchanged(ada)}"}
    body: dict[str, Any] | None = {} if method == "POST" else None
    answer = await browser.request(method, "/api/chats", headers={**headers, **cookie}, json=body)
    assert answer.status_code == status, answer.text


async def test_a_long_lived_token_is_not_taken_from_a_cookie(ada: Client, browser: httpx2.AsyncClient) -> None:
    token = ada.headers["authorization"].removeprefix("Bearer ")
    answer = await browser.get("/api/chats", headers={"Cookie": f"session={token}"})
    assert answer.status_code == 401
    both = {"Cookie": "session=nonsense", "Authorization": f"Bearer {token}"}
    assert (await browser.get("/api/chats", headers=both)).status_code == 200


@pytest.mark.parametrize("origins", ["*", "null", "app.example", f"{ORIGIN}/", f"{ORIGIN}, ftp://x", "https://App.x"])
async def test_only_exact_origins_can_be_named(origins: str) -> None:
    with pytest.raises(ConfigError, match="is no origin"):
        create_app(Settings(_env_file=None, cors_origins=origins))
    assert allowed_origins(BrowserSettings(_env_file=None, cors_origins="http://[::1]:1, https://a.b")) == {
        "http://[::1]:1",
        "https://a.b",
    }


async def test_cookies_need_origins() -> None:
    with pytest.raises(ConfigError, match="TURNSTREAM_CORS_CREDENTIALS needs"):
        allowed_origins(BrowserSettings(_env_file=None, cors_credentials=True))
