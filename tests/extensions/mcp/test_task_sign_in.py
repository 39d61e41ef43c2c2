"""Tasks of a server that requires sign-ins: a job polls its task outside of a turn, with the token of its owner."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.extensions.mcp.mcp_task_server import TaskServer
from tests.extensions.mcp.oauth_issuer import LIST_TOKEN, Calendar, OAuthIssuer, Office, listening
from tests.extensions.mcp.test_sign_in import BASE, Browser, Desk, desk_at, results, until_waiting, waiting
from tests.extensions.mcp.test_token_exchange import ExchangeIssuer, Service, expire, places_with
from tests.extensions.mcp.test_token_exchange import desk_at as exchange_at
from tests.support.openapi_document import Document
from tests.support.server_process import free_port
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.scripted import message_of, text, tool_use


@dataclass
class TaskRequests:
    """Answers requests for the tasks in `folder`. `sent` lists the method and the token of each request."""

    folder: Path
    sent: list[tuple[str, str]] = field(default_factory=list)

    def behind(self, refusing: ASGIApp, verify: Callable[[str], Awaitable[object]]) -> ASGIApp:
        """Answers the requests whose token `verify` accepts. All other requests go to `refusing`."""
        tasks = TaskServer(self.folder)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] != "/mcp":
                return await refusing(scope, receive, send)
            request = Request(scope, receive)
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if await verify(token) is None:
                return await refusing(scope, receive, send)
            message = await request.json()
            self.sent.append((message["method"], token))
            if "id" not in message:
                return await Response(status_code=202)(scope, receive, send)
            answer = tasks.answer(message, dict(request.headers))
            return await JSONResponse(answer, 200 if "result" in answer else 400)(scope, receive, send)

        return app

    def tokens(self, method: str) -> list[str]:
        return [token for name, token in self.sent if name == method]


class TaskCalendar(Calendar):
    """A calendar that runs each call as a task."""

    def __init__(self, url: str, issuer: OAuthIssuer, folder: Path) -> None:
        super().__init__(url, issuer)
        self.folder, self.requests = folder, TaskRequests(folder)
        self.tokens = self.requests.tokens

    @property
    def app(self) -> ASGIApp:
        return self.requests.behind(super().app, self.verify_token)


class TaskService(Service):
    """An MCP server that accepts exchanged tokens and runs each call as a task."""

    def __init__(self, url: str, issuer: ExchangeIssuer, folder: Path) -> None:
        super().__init__(url, issuer)
        self.folder, self.requests = folder, TaskRequests(folder)
        self.tokens = self.requests.tokens

    @property
    def mcp(self) -> ASGIApp:
        return self.requests.behind(super().mcp, self.verify_token)


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


@pytest.mark.extensions("mcp", "http_tools", "jwt", "jobs")
@pytest.mark.timeout(300)
async def test_a_task_is_polled_with_exchanged_tokens_and_waits_for_a_caller_whose_token_is_valid(
    database_url: str, document: Document, tmp_path: Path
) -> None:
    async with (
        places_with(lambda url, issuer: TaskService(url, issuer, tmp_path)) as (issuer, crm, calendar),
        exchange_at(database_url, document, issuer, crm, calendar, new_master_key()) as desk,
    ):
        assert isinstance(calendar, TaskService)

        async def polled_with(made: object) -> str:
            """Waits for a poll whose token is not `made`. Returns the token of the poll."""
            while calendar.tokens("tasks/get")[-1:] in ([], [made]):  # noqa: ASYNC110, a server has no event
                await asyncio.sleep(0.02)
            return calendar.tokens("tasks/get")[-1]

        async with desk.client() as ada:
            replies = message_of(tool_use("calendar__wait", {}, "a")), message_of(text("Done."))
            turn = await ada.say(await ada.chat(), model=desk.server.scripts.model(*replies))
            first = await polled_with(None)
            assert calendar.tokens("tools/call") == [first]
            (job,) = (await ada.json("GET", turn.url))["jobs"]
            assert (job["kind"], issuer.good[first]) == ("mcp_task", ("ada", calendar.url))
            del issuer.good[first]  # the service now rejects this token, but the caller's own token is still valid
            second = await polled_with(first)
            assert (issuer.good[second], len(issuer.forms)) == (("ada", calendar.url), 2)
            await expire(desk, database_url)
            del issuer.good[second]
            while "needs a valid token of" not in (job["progress"] or ""):
                await asyncio.sleep(0.02)
                (job,) = (await ada.json("GET", turn.url))["jobs"]
            assert (await ada.json("GET", turn.url))["actions"] == []
            subject = desk.issuer.forms[0]["subject_token"]
        async with desk.client(jti="later") as ada:
            await ada.ask(await ada.chat())  # any request of the owner gives the server a new token of the caller
            third = await polled_with(second)
            (tmp_path / "release").touch()
            assert await results(ada, turn) == {"a": "wait done"}
    assert (len(calendar.tokens("tools/call")), len({first, second, third})) == (1, 3)
    assert subject not in {*calendar.tokens("tasks/get"), *calendar.seen}
