"""While no token exists, requests from this machine need none, and requests from other machines are refused."""

import asyncio
import re
from collections.abc import AsyncIterator
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import pytest_asyncio

from tests.integration.api.test_openapi import body_of
from tests.support.calls import ENDPOINTS, OPENAI
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from turnstream.domain.identity import Identity
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def local_server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def local(local_server: Server, document: Document) -> AsyncIterator[Client]:
    async with Client(local_server.url, document) as client:
        yield client


async def test_this_machine_needs_no_token(local: Client) -> None:
    assert (await local.ask(await local.chat())).assistant["status"] == "complete"
    for host in ("localhost", "localhost:80", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000", "LocalHost:8000"):
        assert (await local.get("/api/chats", headers={"Host": host})).status_code == 200


async def test_a_name_that_is_not_this_machines_is_refused(local: Client) -> None:
    for host in (
        *("example.org", "example.org:8000", "localhost.example.org", "127.0.0.1.example.org", "example.org:localhost"),
        *("localhost@example.org", "", "127.0.0.2", "[::2]", "::1", "10.0.0.1:8000", "localhost:80:80", "localhost:x"),
    ):
        assert (await local.get("/api/chats", headers={"Host": host})).status_code == 401, host


@pytest.mark.parametrize(
    "name",
    ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "CF-Connecting-IP"],
)
async def test_requests_through_a_proxy_need_a_token(local: Client, name: str) -> None:
    answer = await local.get("/api/chats", headers={name: "203.0.113.9"})
    assert answer.status_code == 401
    assert name.lower() in answer.json()["detail"]


async def test_two_hosts_are_refused(local_server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(local_server.url).port)
    writer.write(b"GET /api/chats HTTP/1.1\r\nHost: localhost\r\nHost: example.org\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
    writer.close()
    await writer.wait_closed()


async def test_a_path_with_a_slash_too_many_leads_to_no_host_of_the_callers(local: Client) -> None:
    assert (await local.get("/api/chats/", headers={"Host": "localhost"})).status_code == 404


async def test_every_answer_forbids_browsers_to_guess_and_to_run(local: Client) -> None:
    for path in ("/api/chats", "/nowhere", "/healthz", "/metrics", "/openapi.json", "/api/chats/x"):
        answer = await local.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["content-security-policy"].startswith("default-src 'none'"), path


async def test_no_answer_is_for_a_cache_or_for_a_page_of_another_origin(local_server: Server) -> None:
    async with Client(local_server.url) as local:
        for endpoint in (*ENDPOINTS, *OPENAI):
            path = re.sub("{[^}]*}", str(uuid4()), endpoint.path)
            async with local.stream(endpoint.method, path, **body_of(endpoint)) as answer:  # streams do not end
                caching = answer.headers["cache-control"]
                assert caching.startswith("no-store") or caching == "private, no-cache", endpoint.call
                assert answer.headers["cross-origin-resource-policy"] == "same-origin", endpoint.call
                assert answer.headers["x-content-type-options"] == "nosniff", endpoint.call


async def test_a_request_that_a_foreign_page_makes_is_refused(local: Client, local_server: Server) -> None:
    for origin in ("https://example.org", "http://example.org:8000", "null", "http://localhost.example.org"):
        answer = await local.post("/api/chats", headers={"Origin": origin})
        assert answer.status_code == 401, origin
    assert (await local.json("GET", "/api/chats"))["chats"] == []
    for site, status in {"cross-site": 401, "same-site": 200, "same-origin": 200, "none": 200}.items():
        assert (await local.get("/api/chats", headers={"Sec-Fetch-Site": site})).status_code == status, site
    port = urlsplit(local_server.url).port
    for origin in (f"http://localhost:{port}", "http://127.0.0.1:5173", "http://[::1]:3000"):
        assert (await local.post("/api/chats", headers={"Origin": origin})).status_code == 201, origin


async def test_any_key_is_as_good_as_none(local: Client) -> None:
    assert (await local.get("/api/chats", headers={"Authorization": "Bearer x"})).status_code == 200


async def test_the_first_token_closes_the_server_while_it_runs(
    local: Client, local_server: Server, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.api.identity.local.BELIEVED", 0)
    await local.chat(title="Local")
    token = await local_server.token("ada")
    async with Client(local_server.url, document, token) as ada:
        assert (await ada.json("GET", "/api/chats"))["chats"] == []
    assert (await local.get("/api/chats")).status_code == 401
    async with Client(local_server.url, document, await local_server.token("local")) as owner:
        assert [chat["title"] for chat in (await owner.json("GET", "/api/chats"))["chats"]] == ["Local"]


async def test_a_server_that_others_can_reach_stays_closed_when_its_last_token_is_taken_back(
    database_url: str, document: Document
) -> None:
    async with connect(database_url, size=2) as database:
        tokens = Tokens(database)
        await tokens.create("only", Identity("ada"))
        async with serving(database_url, host="0.0.0.0") as server, Client(server.url, document) as anyone:
            await tokens.delete("only")
            for host in ("localhost", "127.0.0.1", "example.org"):
                assert (await anyone.get("/api/chats", headers={"Host": host})).status_code == 401, host
                assert (await anyone.post("/api/chats", headers={"Host": host})).status_code == 401, host
