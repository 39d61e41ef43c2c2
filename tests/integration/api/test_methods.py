import asyncio
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from tests.support.http_client import Client
from tests.support.http_server import Server

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
        assert "/openapi.json" in answer.json()["detail"]


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
