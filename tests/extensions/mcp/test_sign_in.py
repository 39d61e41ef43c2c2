"""Sign-ins per user: a call waits for the consent of its owner, and is made with the owner's tokens."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import pytest_asyncio

from tests.extensions.mcp.oauth_issuer import LIST_TOKEN, Calendar, OAuthIssuer, Office, office
from tests.support.http_client import Client, Said
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.servers import McpServers, McpTiming
from turnstream.kit.sealing import new_master_key
from turnstream.llm.scripted import message_of, text, tool_use
from turnstream.tools.toolset import Toolset

BASE = "http://turnstream.test"  # what links begin with; the browser of a test knows where that is


@dataclass
class Desk:
    """A server whose owners sign in to the calendar of an office."""

    server: Server
    client: Client
    office: Office
    document: Document

    @property
    def issuer(self) -> OAuthIssuer:
        return self.office.issuer

    @property
    def calendar(self) -> Calendar:
        return self.office.calendar

    async def ask(self, client: Client | None = None, *calls: tuple[str, str]) -> Said:
        """A turn that calls tools of the calendar."""
        client = client or self.client
        names = calls or (("a", "events"),)
        reply = message_of(*(tool_use(f"calendar__{name}", {"guest": "bob"} if name == "invite" else {}, id) for id, name in names))
        return await client.say(await client.chat(), model=self.server.scripts.model(reply, message_of(text("Done."))))


def declared(calendar: Calendar, **more: Any) -> McpServer:
    headers = {"Authorization": f"Bearer {LIST_TOKEN}"}
    return McpServer("calendar", url=calendar.url, headers=headers, oauth=True, **more)


@asynccontextmanager
async def desk_at(
    database_url: str, document: Document, place: Office, key: str, **more: Any
) -> AsyncIterator[Desk]:
    async with AsyncExitStack() as stack:
        timing = McpTiming(connect_timeout=60)
        servers = await stack.enter_async_context(McpServers([declared(place.calendar, **more)], timing))
        toolset = Toolset([], sources=[servers])
        server = await stack.enter_async_context(
            serving(database_url, toolset, sign_in_url=BASE, master_key=key)
        )
        client = await stack.enter_async_context(Client(server.url, document))
        yield Desk(server, client, place, document)


@pytest_asyncio.fixture
async def place() -> AsyncIterator[Office]:
    async with office() as place:
        yield place


@pytest_asyncio.fixture
async def desk(database_url: str, document: Document, place: Office) -> AsyncIterator[Desk]:
    async with desk_at(database_url, document, place, new_master_key()) as desk:
        yield desk


async def waiting(client: Client, turn: Said) -> dict[str, Any]:
    """The one action that a turn waits for."""
    async with client.follow(turn.stream_url) as events:
        async for event in events:
            if event.name == "action_required":
                (action,) = event.data["calls"]
                found: dict[str, Any] = action
                return found
    raise AssertionError("nothing was asked for")


class Browser(httpx2.AsyncClient):
    """Follows nothing by itself; keeps cookies as a browser does, for the address of the server alone."""

    def __init__(self, server_url: str) -> None:
        super().__init__(trust_env=False, timeout=60)
        self._server_url = server_url
        self._kept = ""

    async def open(self, url: str, method: str = "GET") -> httpx2.Response:
        is_ours = url.startswith(BASE)
        headers = {"Cookie": self._kept} if is_ours and self._kept else {}
        self.cookies.clear()
        answer = await self.request(method, url.replace(BASE, self._server_url), headers=headers)
        if is_ours and (set_cookie := answer.headers.get("set-cookie")):
            self._kept = set_cookie.partition(";")[0]
        return answer

    async def consent(self, link: str) -> str:
        """From the link to the consent. Returns the address of the callback."""
        shown = await self.open(link)
        assert shown.status_code == 200, shown.text
        there = await self.open(link, "POST")
        assert there.status_code == 303, there.text
        back = await self.open(there.headers["location"])
        assert back.status_code == 302, back.text
        return str(back.headers["location"])

    async def sign_in(self, link: str) -> httpx2.Response:
        return await self.open(await self.consent(link))


@pytest_asyncio.fixture
async def browser(desk: Desk) -> AsyncIterator[Browser]:
    async with Browser(desk.server.url) as browser:
        yield browser


async def results(client: Client, turn: Said) -> dict[str, str]:
    await client.events(turn.stream_url)
    blocks = (await client.json("GET", turn.url))["blocks"]
    return {block["tool_use_id"]: block["text"] for block in blocks if block["type"] == "tool_result"}


async def status(client: Client, turn: Said) -> str:
    return str((await client.json("GET", turn.url))["status"])


async def until_waiting(client: Client, turn: Said) -> None:
    while await status(client, turn) != "waiting":
        await asyncio.sleep(0.02)


# --- the straight way ------------------------------------------------------------------------------------------------


async def test_a_call_waits_for_the_consent_of_its_owner_and_is_made_then(desk: Desk, browser: Browser) -> None:
    client, turn = desk.client, await desk.ask()
    action = await waiting(client, turn)
    assert (action["type"], action["name"], action["tool_use_id"]) == ("sign_in", "calendar__events", "a")
    assert action["input"]["server"] == "calendar"
    assert action["expires_at"] is None
    await until_waiting(client, turn)
    found = await client.json("GET", turn.url)
    assert found["actions"] == [action]
    (listed,) = (await client.json("GET", "/api/waiting"))["calls"]
    assert (listed["turn"], listed["tool_use_id"], listed["type"]) == (turn.assistant["id"], "a", "sign_in")
    assert desk.calendar.calls == 0

    link = action["input"]["url"]
    page = (await browser.open(link)).text
    assert "calendar.read" in page
    assert desk.issuer.url.removeprefix("http://") in page
    done = await browser.sign_in(link)
    assert (done.status_code, "signed in to calendar" in done.text) == (200, True)
    assert await results(client, turn) == {"a": "events of ada"}
    (query, _), *_ = [*desk.issuer.codes.values()] or [({}, None)]
    assert query == {}, "each code is used"

    (shown,) = (await client.json("GET", "/api/sign-ins"))["sign_ins"]
    assert (shown["server"], shown["issuer"], shown["scopes"]) == (
        "calendar",
        desk.issuer.url,
        ["calendar.read", "offline_access"],
    )
    assert await results(client, await desk.ask()) == {"a": "events of ada"}, "nobody is asked twice"
    assert LIST_TOKEN not in desk.calendar.seen
