"""Requests that are cancelled get 503. A server that stops cancels the requests that it has not answered."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from tests.support.calls import PARTS
from tests.support.http_client import Client, said
from tests.support.server_process import Server
from turnstream.api.dispatch import routes_of
from turnstream.api.http.connection import SafeHeaders
from turnstream.api.http.errors import HANDLERS

ALL = {endpoint.call: (part, endpoint) for part in PARTS for endpoint in part.endpoints}


async def cancelled(app: Starlette, method: str, path: str, reached: asyncio.Event) -> list[Message]:
    """Returns the messages that the server sends for a request that is cancelled when `reached` is set."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "state": {}}
    task = asyncio.create_task(app(scope, receive, send))
    await reached.wait()
    task.cancel()
    await task
    return sent


def app_of(*routes: BaseRoute) -> Starlette:
    return Starlette(routes=[*routes], exception_handlers=dict(HANDLERS), middleware=[Middleware(SafeHeaders)])


def stuck(reached: asyncio.Event) -> Callable[[Request], "asyncio.Future[Response]"]:
    def handler(_: Request) -> "asyncio.Future[Response]":
        reached.set()
        return asyncio.get_running_loop().create_future()

    return handler


@pytest.mark.parametrize("call", ALL)
async def test_a_cancelled_call_is_answered_with_503_in_the_words_of_its_dialect(call: str) -> None:
    reached = asyncio.Event()
    part, endpoint = ALL[call]
    endpoint = replace(endpoint, handler=stuck(reached), open=True, limits=())
    (route,) = routes_of([replace(part, endpoints=(endpoint,), routes=(), header=None)])
    path = endpoint.path.replace(":path", "").replace("{", "").replace("}", "")
    start, body = await cancelled(app_of(route), endpoint.method, path, reached)
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]
    answer = json.loads(body["body"])
    if part.foreign is None:
        assert answer["code"] == "unavailable"
    else:
        assert answer["error"]["type"] == {"openai": "server_error", "anthropic": "api_error"}[part.foreign.name]


async def test_a_request_that_is_cancelled_outside_of_a_handler_is_answered_with_503() -> None:
    reached = asyncio.Event()

    class Stuck:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            reached.set()
            await asyncio.get_running_loop().create_future()

    start, body = await cancelled(app_of(Route("/page", Stuck())), "GET", "/page", reached)
    assert (start["status"], json.loads(body["body"])["code"]) == (503, "unavailable")


@pytest.mark.timeout(180)
async def test_a_stopping_server_answers_open_requests_with_503(database_url: str, tmp_path: Path) -> None:
    server = Server(database_url, tmp_path, {"TURNSTREAM_POSTGRES_TIMEOUT": "60"})
    await server.start()
    connection = await asyncpg.connect(database_url)
    try:
        async with Client(server.url) as client, connection.transaction():
            await connection.execute("LOCK TABLE chats")
            requests = [
                asyncio.ensure_future(client.post("/api/turns", json=said("Go."))),
                asyncio.ensure_future(client.post("/v1/responses", json={"model": "demo", "input": "Go."})),
                asyncio.ensure_future(client.get("/api/chats")),
            ]
            while await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < len(requests):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            status = asyncio.ensure_future(server.terminate())
            answers = await asyncio.gather(*requests)
        assert [(each.status_code, each.headers["retry-after"]) for each in answers] == [(503, "1")] * len(requests)
        assert await status == 0
    finally:
        await connection.close()
        await server.close()
