"""Tasks of a server with sign-ins: a job polls them outside the turn, with the token of its owner."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.extensions.mcp.mcp_task_server import TaskServer
from tests.extensions.mcp.oauth_issuer import LIST_TOKEN, Calendar, OAuthIssuer, Office, listening
from tests.extensions.mcp.test_sign_in import BASE, Browser, Desk, desk_at, results, until_waiting, waiting
from tests.support.openapi_document import Document
from tests.support.server_process import free_port
from turnstream.kit.sealing import new_master_key


class TaskCalendar(Calendar):
    """A calendar whose calls are tasks. `sent` are the methods of requests with the tokens that they came with."""

    def __init__(self, url: str, issuer: OAuthIssuer, folder: Path) -> None:
        super().__init__(url, issuer)
        self.folder = folder
        self.sent: list[tuple[str, str]] = []
        self._tasks = TaskServer(folder)

    @property
    def app(self) -> ASGIApp:
        refusing = super().app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] != "/mcp":
                return await refusing(scope, receive, send)
            request = Request(scope, receive)
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if await self.verify_token(token) is None:
                return await refusing(scope, receive, send)
            message = await request.json()
            self.sent.append((message["method"], token))
            if "id" not in message:
                return await Response(status_code=202)(scope, receive, send)
            answer = self._tasks.answer(message, dict(request.headers))
            return await JSONResponse(answer, 200 if "result" in answer else 400)(scope, receive, send)

        return app

    def tokens(self, method: str) -> list[str]:
        return [token for name, token in self.sent if name == method]


@pytest_asyncio.fixture
async def calendar(tmp_path: Path) -> AsyncIterator[TaskCalendar]:
    ports = free_port(), free_port()
    issuer = OAuthIssuer(f"http://127.0.0.1:{ports[0]}")
    calendar = TaskCalendar(f"http://127.0.0.1:{ports[1]}", issuer, tmp_path)
    async with listening(issuer.app, ports[0]), listening(calendar.app, ports[1]):
        yield calendar


@pytest_asyncio.fixture
async def desk(database_url: str, document: Document, calendar: TaskCalendar) -> AsyncIterator[Desk]:
    place = Office(calendar.issuer, calendar)
    async with desk_at(database_url, document, place, new_master_key(), base=BASE) as desk:
        yield desk


@pytest.mark.timeout(300)
async def test_a_task_is_polled_with_the_token_of_its_owner_and_waits_while_there_is_none(
    desk: Desk, calendar: TaskCalendar
) -> None:
    client = desk.client
    async with Browser(desk.server.url) as browser:
        turn = await desk.ask(client, ("a", "wait"))
        action = await waiting(client, turn)
        assert (action["type"], calendar.tokens("tools/call")) == ("sign_in", [])
        assert (await browser.sign_in(action["input"]["url"])).status_code == 200
        while not calendar.tokens("tasks/get"):  # noqa: ASYNC110, a server has no event
            await asyncio.sleep(0.02)
        await until_waiting(client, turn)
        (job,) = (await client.json("GET", turn.url))["jobs"]
        assert job["kind"] == "mcp_task"

        await client.json("DELETE", "/api/sign-ins/calendar")
        (calendar.folder / "release").touch()
        other = await desk.ask(client, ("b", "plain"))
        action = await waiting(client, other)
        assert (await browser.sign_in(action["input"]["url"])).status_code == 200
        assert await results(client, other) == {"b": "plain done"}
        assert await results(client, turn) == {"a": "wait done"}
    made, plain = calendar.tokens("tools/call")
    polled = calendar.tokens("tasks/get")
    assert (polled[0], polled[-1]) == (made, plain)
    assert LIST_TOKEN not in {made, *polled}
