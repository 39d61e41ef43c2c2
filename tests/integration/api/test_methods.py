import asyncio
from urllib.parse import urlsplit
from uuid import UUID

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.testing import capture_logs

from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.api.http.connection import SafeHeaders
from turnstream.api.http.errors import failed

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "PATCH", "DELETE", "TRACE"])
async def test_a_wrong_method_is_a_problem_that_names_the_right_ones(api: Client, method: str) -> None:
    answer = await api.request(method, "/api/chats")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert answer.json()["detail"] == f"This path does not take {method}; it takes {answer.headers['allow']}."


async def test_a_path_that_is_not_there_is_a_problem(api: Client) -> None:
    for path in ("/api/nothing", "/api/chats/", "/api/turns/x", "/api//chats"):
        answer = await api.get(path)
        assert answer.status_code == 404
        assert "no such path" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/api/chats", "/api/nothing", "/healthz"])
async def test_every_answer_has_the_id_of_its_request(api: Client, path: str) -> None:
    given = {"X-Request-ID": "trace_7.a-1"}
    assert (await api.get(path, headers=given)).headers["x-request-id"] == "trace_7.a-1"
    made = {(await api.get(path)).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    for wrong in (b"", b"a b", "é".encode(), b"x" * 129, b'"'):
        answer = await api.get(path, headers=[(b"X-Request-ID", wrong)])
        UUID(answer.headers["x-request-id"])


async def test_a_bug_is_named_in_the_log_by_the_id_of_its_request() -> None:
    async def broken(_request: Request) -> Response:
        raise LookupError("a bug")

    app = Starlette(
        routes=[Route("/broken", broken)],
        middleware=[Middleware(SafeHeaders), Middleware(ServerErrorMiddleware, handler=failed)],
    )
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
        with capture_logs() as logs:
            answer = (await client.get("/broken", headers={"X-Request-ID": "r-1"})).json()
    assert (answer["status"], answer["code"], answer["request_id"]) == (500, "server_failed", "r-1")
    assert [(line["event"], line["request"]) for line in logs] == [("request.failed", "r-1")]


async def test_head_gives_the_headers_of_get_and_no_body(api: Client) -> None:
    chat = await api.chat()
    for path in (chat, "/api/chats", "/api/models", "/healthz", "/openapi.json"):
        head, get = await api.head(path), await api.get(path)
        assert head.status_code == get.status_code == 200
        assert not head.content
        assert head.headers["content-length"] == str(len(get.content))


async def test_head_of_a_stream_does_not_follow_it(api: Client) -> None:
    said = await api.ask(await api.chat())
    head = await api.head(said.stream_url)
    assert head.status_code == 200
    assert head.headers["content-type"].startswith("text/event-stream")
    assert not head.content


async def test_a_client_that_disconnects_in_the_middle_of_a_body_is_no_failure(server: Server) -> None:
    host, port = urlsplit(server.url).netloc.split(":")
    with capture_logs() as logs:
        _, writer = await asyncio.open_connection(host, int(port))
        token = await server.token("somebody")
        head = f"POST /api/chats HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        writer.close()
        await writer.wait_closed()
        async with Client(server.url) as later:
            assert (await later.get("/healthz")).status_code == 200
    assert logs == []
