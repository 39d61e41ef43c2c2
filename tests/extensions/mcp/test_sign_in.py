"""Sign-ins of owners: a call waits for the consent of its owner, and then sends the owner's token."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest
import pytest_asyncio
from starlette.responses import RedirectResponse, Response
from structlog.testing import capture_logs

from tests.extensions.mcp.oauth_issuer import LIST_TOKEN, Calendar, OAuthIssuer, Office, office
from tests.support.http_client import Client, Said
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from tests.support.server_process import Server as Process
from turnstream.config import Settings
from turnstream.engine.tool_gate import OUTCOME_UNKNOWN
from turnstream.extensions.mcp import oauth
from turnstream.extensions.mcp.connection import McpTiming
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.servers import McpServers
from turnstream.extensions.owner_commands.owners import _erase
from turnstream.libraries.erasure.owners import Owners
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.scripted import message_of, text, tool_use
from turnstream.storage.database import Statement, connect
from turnstream.tools.toolset import Toolset

TOOLS = f"""
[mcp.calendar]
url = "{{url}}"
auth = "oauth"
read_only = ["events"]
headers = {{{{ Authorization = "Bearer {LIST_TOKEN}" }}}}
"""
BASE = "http://turnstream.test"  # links begin with this address, which the browser of a test maps to the server


@dataclass
class Desk:
    """A server whose owners can sign in to the calendar of an office."""

    server: Server
    client: Client
    office: Office
    key: str
    document: Document | None

    @property
    def issuer(self) -> OAuthIssuer:
        return self.office.issuer

    @property
    def calendar(self) -> Calendar:
        return self.office.calendar

    async def ask(self, client: Client | None = None, *calls: tuple[str, str]) -> Said:
        """Starts a turn that calls tools of the calendar."""
        client = client or self.client
        names = calls or (("a", "events"),)
        reply = message_of(
            *(tool_use(f"calendar__{name}", {"guest": "bob"} if name == "invite" else {}, id) for id, name in names)
        )
        return await client.say(await client.chat(), model=self.server.scripts.model(reply, message_of(text("Done."))))


def declared(calendar: Calendar, **more: Any) -> McpServer:
    headers = {"Authorization": f"Bearer {LIST_TOKEN}"}
    return McpServer("calendar", url=calendar.url, headers=headers, oauth=True, **more)


@asynccontextmanager
async def desk_at(
    database_url: str, document: Document | None, place: Office, key: str, base: str = BASE, **more: Any
) -> AsyncIterator[Desk]:
    async with AsyncExitStack() as stack:
        timing = McpTiming(connect_timeout=150)
        servers = await stack.enter_async_context(McpServers([declared(place.calendar, **more)], timing))
        toolset = Toolset([], sources=[servers])
        server = await stack.enter_async_context(serving(database_url, toolset, sign_in_url=base, master_key=key))
        client = await stack.enter_async_context(Client(server.url, document))
        yield Desk(server, client, place, key, document)


@pytest_asyncio.fixture
async def place() -> AsyncIterator[Office]:
    async with office() as place:
        yield place


@pytest_asyncio.fixture
async def desk(database_url: str, document: Document, place: Office) -> AsyncIterator[Desk]:
    async with desk_at(database_url, document, place, new_master_key()) as desk:
        yield desk


async def waiting(client: Client, turn: Said) -> dict[str, Any]:
    """Returns the only action that a waiting turn requires."""
    async with client.follow(turn.stream_url) as events:
        async for event in events:
            if event.name == "action_required":
                (action,) = event.data["calls"]
                found: dict[str, Any] = action
                return found
    raise AssertionError("nothing was asked for")


class Browser(httpx2.AsyncClient):
    """An HTTP client that follows no redirects. Like a browser, it keeps cookies only for the server's address."""

    def __init__(self, server_url: str, base: str = BASE) -> None:
        super().__init__(trust_env=False, timeout=150)
        self._base = base
        self._server_url = server_url
        self._kept = ""

    async def open(self, url: str, method: str = "GET", authorization: str = "") -> httpx2.Response:
        is_ours = url.startswith(self._base)
        headers = {"Cookie": self._kept} if is_ours and self._kept else {}
        headers |= {"Authorization": authorization} if authorization else {}
        self.cookies.clear()
        answer = await self.request(method, url.replace(self._base, self._server_url), headers=headers)
        if is_ours and (set_cookie := answer.headers.get("set-cookie")):
            self._kept = set_cookie.partition(";")[0]
        return answer

    async def proceed(self, link: str) -> httpx2.Response:
        """Opens a link, and submits the form on the linked page."""
        shown = await self.open(link)
        assert shown.status_code == 200, shown.text
        (action,) = re.findall(r'<form method="post" action="([^"]+)">', shown.text)
        return await self.open(f"{link}{action}", "POST")

    async def consent(self, link: str) -> str:
        """Opens a link, and consents at the issuer. Returns the address of the callback."""
        there = await self.proceed(link)
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
    while await status(client, turn) != "waiting":  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.02)


# --- a successful sign-in --------------------------------------------------------------------------------------------


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
    assert desk.issuer.codes == {}, "each code is used"

    (shown,) = (await client.json("GET", "/api/sign-ins"))["sign_ins"]
    assert (shown["server"], shown["issuer"], shown["scopes"]) == (
        "calendar",
        desk.issuer.url,
        ["calendar.read", "offline_access"],
    )
    assert await results(client, await desk.ask()) == {"a": "events of ada"}, "nobody is asked twice"
    assert LIST_TOKEN not in desk.calendar.seen


async def test_a_sign_in_answers_all_calls_of_its_owner_and_no_other_call(desk: Desk, browser: Browser) -> None:
    tokens = [await desk.server.token(owner) for owner in ("ada", "bob")]
    async with (
        Client(desk.server.url, desk.document, tokens[0]) as ada,
        Client(desk.server.url, desk.document, tokens[1]) as bob,
    ):
        first = await desk.ask(ada, ("a", "events"), ("b", "events"))
        second, others = await desk.ask(ada, ("a", "invite")), await desk.ask(bob)
        for client, turn in ((ada, first), (ada, second), (bob, others)):
            await until_waiting(client, turn)
        link = (await ada.json("GET", first.url))["actions"][0]["input"]["url"]
        assert (await browser.sign_in(link)).status_code == 200
        assert await results(ada, first) == {"a": "events of ada", "b": "events of ada"}
        assert await results(ada, second) == {"a": "ada has invited bob"}
        assert await status(bob, others) == "waiting"
        assert (await bob.json("GET", "/api/sign-ins"))["sign_ins"] == []
        await bob.json("DELETE", "/api/sign-ins/calendar", 404)

        desk.issuer.subject = "bob"
        theirs = await waiting(bob, others)
        assert (await browser.sign_in(theirs["input"]["url"])).status_code == 200
        assert await results(bob, others) == {"a": "events of bob"}
        assert await results(ada, await desk.ask(ada)) == {"a": "events of ada"}


async def test_a_person_may_decline_or_say_something_else(desk: Desk, browser: Browser) -> None:
    client, turn = desk.client, await desk.ask()
    action = await waiting(client, turn)
    ids = {"tool_use_id": "a", "input_digest": action["input_digest"]}
    wrong = {"type": "approve", **ids}
    await client.json("POST", f"{turn.url}/actions", 422, json={"actions": [wrong]})
    declined = {"type": "answer", **ids, "action": "decline"}
    await client.json("POST", f"{turn.url}/actions", 202, json={"actions": [declined]})
    assert await results(client, turn) == {"a": "This call was not run: The user did not sign in."}
    refused = await browser.open(action["input"]["url"])
    assert (refused.status_code, "already has an answer" in refused.text) == (409, True)
    assert desk.calendar.calls == 0


async def test_an_accepted_ask_without_a_sign_in_asks_again(desk: Desk) -> None:
    client, turn = desk.client, await desk.ask()
    action = await waiting(client, turn)
    accepted = {"type": "answer", "tool_use_id": "a", "input_digest": action["input_digest"], "action": "accept"}
    await client.json("POST", f"{turn.url}/actions", 202, json={"actions": [accepted]})
    while not (actions := (await client.json("GET", turn.url))["actions"]) or actions == [action]:  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.02)
    assert [each["type"] for each in actions] == ["sign_in"]
    assert desk.calendar.calls == 0


async def test_a_sign_out_deletes_the_tokens_here_and_at_the_issuer(desk: Desk, browser: Browser) -> None:
    client, turn = desk.client, await desk.ask()
    await browser.sign_in((await waiting(client, turn))["input"]["url"])
    await results(client, turn)
    (family,) = desk.issuer.families
    assert await client.json("DELETE", "/api/sign-ins/calendar") == {"revoked": "calendar", "at_issuer": True}
    assert desk.issuer.revocations == [family.refresh[-1], family.access[-1]]
    assert family.revoked
    await client.json("DELETE", "/api/sign-ins/calendar", 404)
    again = await desk.ask()
    assert (await waiting(client, again))["type"] == "sign_in"


async def test_a_client_of_the_settings_sends_its_secret_and_is_not_registered(
    database_url: str, document: Document, place: Office
) -> None:
    id, secret = "turn stream", "s%cr:et"
    place.issuer.clients[id] = {"redirect_uris": [f"{BASE}/sign-in/callback"]}
    place.issuer.secrets[id] = secret
    more: dict[str, Any] = {"client_id": id, "client_secret": secret, "scopes": ("calendar.read",)}
    async with (
        desk_at(database_url, document, place, new_master_key(), **more) as desk,
        Browser(desk.server.url) as browser,
    ):
        await signed_in(desk, browser)
        (family,) = place.issuer.families
        family.access.append("rotated elsewhere")
        assert await results(desk.client, await desk.ask()) == {"a": "events of ada"}
        assert (await desk.client.json("DELETE", "/api/sign-ins/calendar"))["at_issuer"]
    assert (list(place.issuer.clients), family.scopes, place.issuer.refused) == ([id], ["calendar.read"], [])


async def test_an_issuer_that_reads_the_metadata_document_registers_no_client(
    database_url: str, document: Document, place: Office
) -> None:
    base = "https://turnstream.test"
    place.issuer.metadata["client_id_metadata_document_supported"] = True
    async with (
        desk_at(database_url, document, place, new_master_key(), base) as desk,
        Browser(desk.server.url, base) as browser,
    ):

        async def fetch(url: str) -> dict[str, Any]:
            found: dict[str, Any] = (await browser.open(url)).json()
            return found

        place.issuer.fetch = fetch
        link = (await waiting(desk.client, await desk.ask()))["input"]["url"]
        cookie = (await browser.open(link)).headers["set-cookie"]
        assert cookie.startswith("__Host-")
        assert {"secure", "httponly", "samesite=lax", "path=/"} <= set(cookie.lower().split("; "))
        await signed_in(desk, browser)
    assert place.issuer.clients == {}
    assert [family.client for family in place.issuer.families] == [f"{base}/sign-in/client.json"]


@pytest.mark.extensions("ai_sdk", "mcp")
async def test_a_client_of_the_ai_sdk_gets_the_link(desk: Desk) -> None:
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "What is on?"}]}
    model = desk.server.scripts.model(message_of(tool_use("calendar__events", {}, "a")), message_of(text("Done.")))
    body = {"id": "mine", "messages": [message], "turnstream": {"model": model}}
    answer = await desk.client.post("/api/ai-sdk/chat", json=body)
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    (link,) = [chunk for chunk in chunks if chunk["type"] == "data-sign-in"]
    (listed,) = (await desk.client.json("GET", "/api/waiting"))["calls"]
    assert (link["id"], link["data"]["server"], link["transient"]) == ("a", "calendar", True)
    assert link["data"]["url"].startswith(f"{BASE}/sign-in/{listed['turn']}/")
    assert chunks[-1]["messageMetadata"]["status"] == "waiting"


# --- states and codes ------------------------------------------------------------------------------------------------


async def refused_callback(browser: Browser, url: str, words: str) -> None:
    answer = await browser.open(url)
    assert (answer.status_code, words in answer.text) == (400, True), answer.text


async def test_a_callback_that_is_forged_stolen_late_or_repeated_changes_nothing(desk: Desk, browser: Browser) -> None:
    client, turn = desk.client, await desk.ask()
    link = (await waiting(client, turn))["input"]["url"]
    callback = f"{BASE}/sign-in/callback"
    await refused_callback(browser, f"{callback}?state=forged&code=x&iss={desk.issuer.url}", "never was")
    await refused_callback(browser, f"{callback}?code=x", "must have `state`")
    await refused_callback(browser, f"{callback}?state=a%00&code=x", "not valid")

    stolen = await browser.consent(link)
    async with Browser(desk.server.url) as thief:
        await refused_callback(thief, stolen, "another browser")
    await refused_callback(browser, stolen.replace("iss=http", "iss=https"), "not of the issuer")
    await refused_callback(browser, stolen, "completed before")  # the wrong answer has invalidated the state

    late = await browser.consent(link)
    await desk.server.services.storage.database.rows(EXPIRE_PENDING)
    await refused_callback(browser, late, "ten minutes")

    desk.issuer.subject = None
    await refused_callback(browser, await browser.consent(link), "access_denied")
    desk.issuer.subject = "ada"
    older = await browser.consent(link)
    newer = await browser.consent(link)
    await refused_callback(browser, older, "begun again")
    assert await status(client, turn) == "waiting"
    assert desk.issuer.families == []
    assert (await browser.open(newer)).status_code == 200
    assert await results(client, turn) == {"a": "events of ada"}
    await refused_callback(browser, newer, "completed before")
    assert len(desk.issuer.families) == 1


EXPIRE_PENDING = Statement("UPDATE sign_ins SET pending_until = now() - interval '1 second' RETURNING owner")


async def test_a_link_that_was_changed_opens_nothing(desk: Desk, browser: Browser) -> None:
    turn = await desk.ask()
    link = (await waiting(desk.client, turn))["input"]["url"]
    for wrong in (f"{link[:-1]}{'A' if link[-1] != 'A' else 'B'}", link.replace(turn.assistant["id"], turn.user["id"])):
        answer = await browser.open(wrong)
        assert (answer.status_code, "incomplete or was changed" in answer.text) == (404, True)
    assert (await browser.open(f"{BASE}/sign-in/x/y")).status_code == 404
    assert "sandbox" not in (headers := (await browser.open(link)).headers)
    assert headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


async def test_a_form_of_another_site_begins_no_sign_in(desk: Desk, browser: Browser) -> None:
    link = (await waiting(desk.client, await desk.ask()))["input"]["url"]
    (action,) = re.findall(r'action="([^"]+)"', (await browser.open(link)).text)
    async with Browser(desk.server.url) as victim:  # a browser does not send Lax cookies with a form from another site
        refused = await victim.open(f"{link}{action}", "POST")
    assert (refused.status_code, "not opened in this browser" in refused.text) == (403, True)
    assert await desk.server.services.storage.database.rows(GET_ROWS) == []
    assert desk.issuer.clients == {}


async def test_changes_since_the_display_of_the_page_are_shown_again(desk: Desk, browser: Browser) -> None:
    link = (await waiting(desk.client, await desk.ask()))["input"]["url"]
    protected = desk.calendar.described
    page = await browser.open(link)
    desk.calendar.protected = {**protected, "scopes_supported": ["calendar.read", "calendar.delete"]}
    (action,) = re.findall(r'action="([^"]+)"', page.text)
    again = await browser.open(f"{link}{action}", "POST")
    assert (again.status_code, "calendar.delete" in page.text) == (200, False)
    assert "has changed" in again.text
    assert "calendar.delete" in again.text
    assert (await browser.proceed(link)).status_code == 303


async def test_a_link_is_refused_where_the_browser_proves_that_the_person_is_another(
    desk: Desk, browser: Browser
) -> None:
    tokens = [await desk.server.token(owner) for owner in ("ada", "bob")]
    async with Client(desk.server.url, desk.document, tokens[0]) as ada:
        link = (await waiting(ada, await desk.ask(ada)))["input"]["url"]
    for method in ("GET", "POST"):
        refused = await browser.open(link, method, f"Bearer {tokens[1]}")
        assert (refused.status_code, "You are bob here" in refused.text) == (403, True)
    assert (await browser.open(link, "GET", f"Bearer {tokens[0]}")).status_code == 200


# --- tokens ----------------------------------------------------------------------------------------------------------


async def test_two_replicas_refresh_a_token_once(database_url: str, document: Document, place: Office) -> None:
    key = new_master_key()
    async with (
        desk_at(database_url, document, place, key) as one,
        desk_at(database_url, document, place, key) as two,
        Browser(one.server.url) as browser,
    ):
        first = await one.ask()
        place.issuer.expires_in = 0  # the token expires at once, so each call needs a new token
        await browser.sign_in((await waiting(one.client, first))["input"]["url"])
        place.issuer.hold = asyncio.Event()
        place.issuer.expires_in = 3600
        turns = [(one, await one.ask()), (two, await two.ask()), (one, await one.ask())]
        await place.issuer.holding.wait()
        for each, turn in turns:
            await until_started(each, turn)
        place.issuer.hold.set()
        for each, turn in ((one, first), *turns):
            assert await results(each.client, turn) == {"a": "events of ada"}
    assert (place.issuer.refreshes, place.issuer.refused) == (1, [])


async def until_started(desk: Desk, turn: Said) -> None:
    """Waits until the ledger has an entry for the call."""
    while not await desk.server.services.storage.database.rows(GET_STARTED, turn=UUID(turn.assistant["id"])):  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.02)


GET_STARTED = Statement("SELECT FROM tool_calls WHERE turn_id = :turn")


async def signed_in(desk: Desk, browser: Browser) -> None:
    turn = await desk.ask()
    await browser.sign_in((await waiting(desk.client, turn))["input"]["url"])
    assert await results(desk.client, turn) == {"a": "events of ada"}


async def test_a_token_that_the_server_refuses_is_refreshed_and_the_call_is_made_once(
    desk: Desk, browser: Browser
) -> None:
    await signed_in(desk, browser)
    (family,) = desk.issuer.families
    family.access.append("rotated elsewhere")
    turn = await desk.ask(None, ("a", "invite"))
    assert await results(desk.client, turn) == {"a": "ada has invited bob"}
    assert (desk.issuer.refreshes, desk.calendar.calls) == (1, 2)


async def test_tokens_that_the_issuer_has_revoked_are_asked_for_again(desk: Desk, browser: Browser) -> None:
    await signed_in(desk, browser)
    desk.issuer.end_sessions()
    turn = await desk.ask(None, ("a", "invite"))
    link = (await waiting(desk.client, turn))["input"]["url"]
    assert (await desk.client.json("GET", "/api/sign-ins"))["sign_ins"] == []
    await browser.sign_in(link)
    assert await results(desk.client, turn) == {"a": "ada has invited bob"}
    assert desk.calendar.calls == 2


async def test_an_issuer_that_is_away_costs_the_call_and_not_the_sign_in(desk: Desk, browser: Browser) -> None:
    await signed_in(desk, browser)
    desk.issuer.is_away = True
    (family,) = desk.issuer.families
    family.access.append("rotated elsewhere")
    (words,) = (await results(desk.client, await desk.ask())).values()
    assert "cannot be renewed now" in words
    desk.issuer.is_away = False
    assert await results(desk.client, await desk.ask()) == {"a": "events of ada"}


@pytest.mark.parametrize("refusal", [(403, "<html>blocked</html>"), (429, {}), (400, {"error": 7}), (200, {})])
async def test_an_answer_that_is_not_the_issuers_does_not_end_a_sign_in(
    desk: Desk, browser: Browser, refusal: tuple[int, Any]
) -> None:
    await signed_in(desk, browser)
    desk.issuer.refusal = refusal
    desk.issuer.families[0].access.append("rotated elsewhere")
    (words,) = (await results(desk.client, await desk.ask())).values()
    assert "cannot be renewed now" in words
    desk.issuer.refusal = None
    assert await results(desk.client, await desk.ask()) == {"a": "events of ada"}


async def test_an_issuer_that_does_not_answer_is_given_up(
    desk: Desk, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await signed_in(desk, browser)
    monkeypatch.setattr(oauth, "_TIMEOUT", 0.2)
    desk.issuer.hold = asyncio.Event()
    desk.issuer.families[0].access.append("rotated elsewhere")
    (words,) = (await results(desk.client, await desk.ask())).values()
    assert "cannot be renewed now" in words
    desk.issuer.hold.set()


@pytest.mark.parametrize(
    ("answer", "scopes"),
    [
        ({"expires_in": 10**30}, ["calendar.read", "offline_access"]),
        ({"expires_in": -5}, ["calendar.read", "offline_access"]),
        ({"scope": 'calendar.read a\0b "x" ' + "y" * 300}, ["calendar.read"]),
    ],
)
async def test_odd_members_of_a_token_response_are_harmless(
    desk: Desk, browser: Browser, answer: Mapping[str, Any], scopes: list[str]
) -> None:
    desk.issuer.answer = dict(answer)
    await signed_in(desk, browser)
    (shown,) = (await desk.client.json("GET", "/api/sign-ins"))["sign_ins"]
    assert shown["scopes"] == scopes
    assert await results(desk.client, await desk.ask()) == {"a": "events of ada"}


@pytest.mark.parametrize("token", ["two\r\nlines", "ä", "", "x" * 40_000])
async def test_a_token_that_no_header_can_hold_is_refused(desk: Desk, browser: Browser, token: str) -> None:
    turn = await desk.ask()
    desk.issuer.answer = {"access_token": token}
    await refused_callback(browser, await browser.consent((await waiting(desk.client, turn))["input"]["url"]), "token")
    assert await status(desk.client, turn) == "waiting"


async def test_no_token_and_no_code_is_in_a_log_or_on_a_page(desk: Desk, browser: Browser) -> None:
    def repeated(form: Mapping[str, str]) -> dict[str, str]:
        return {"error": "invalid_grant", "error_description": f"not {form.get('code') or form['refresh_token']}"}

    with capture_logs() as logs:
        turn = await desk.ask()
        link = (await waiting(desk.client, turn))["input"]["url"]
        desk.issuer.refusal = (400, repeated)
        callback = await browser.consent(link)
        refused = await browser.open(callback)
        (code,) = desk.issuer.codes
        assert (refused.status_code, code in refused.text) == (400, False)
        assert "invalid_grant: not …" in refused.text
        desk.issuer.refusal = None
        assert (await browser.sign_in(link)).status_code == 200
        await results(desk.client, turn)
        (family,) = desk.issuer.families
        family.access.append("rotated elsewhere")
        desk.issuer.refusal = (400, repeated)
        await waiting(desk.client, await desk.ask())
    secrets = [code, *family.access, *family.refresh, link.rpartition("/")[2], callback, LIST_TOKEN]
    assert [line for line in logs for secret in secrets if secret in str(line)] == []
    assert [line["event"] for line in logs if line["event"].startswith("mcp.refresh")] == ["mcp.refresh_refused"]


async def test_tokens_that_cannot_be_read_are_asked_for_once_and_stay(
    database_url: str, document: Document, place: Office
) -> None:
    key = new_master_key()
    async with desk_at(database_url, document, place, key) as desk, Browser(desk.server.url) as browser:
        await signed_in(desk, browser)
        database = desk.server.services.storage.database
        await database.rows(SPOIL_TOKENS)
        turn = await desk.ask()
        assert (await waiting(desk.client, turn))["type"] == "sign_in"
        await until_waiting(desk.client, turn)
        assert len((await desk.client.json("GET", turn.url))["actions"]) == 1
        await database.rows(SPOIL_TOKENS)  # the second change reverses the first, and so restores the tokens
        assert await results(desk.client, await desk.ask()) == {"a": "events of ada"}
        assert await status(desk.client, turn) == "waiting"


SPOIL_TOKENS = Statement("UPDATE sign_ins SET tokens = reverse(tokens) RETURNING owner")


async def test_a_token_that_was_refreshed_after_a_sign_out_is_revoked(desk: Desk, browser: Browser) -> None:
    await signed_in(desk, browser)
    (family,) = desk.issuer.families
    family.access.append("rotated elsewhere")
    desk.issuer.hold = asyncio.Event()
    turn = await desk.ask()
    await desk.issuer.holding.wait()
    database = desk.server.services.storage.database
    await database.rows(DELETE_ROWS)  # simulates a sign-out before the issuer answers
    desk.issuer.hold.set()
    assert (await waiting(desk.client, turn))["type"] == "sign_in"
    assert desk.issuer.revocations == [family.refresh[-1], family.access[-1]]


async def test_a_sign_in_that_is_completed_after_a_sign_out_is_revoked(desk: Desk, browser: Browser) -> None:
    turn = await desk.ask()
    callback = await browser.consent((await waiting(desk.client, turn))["input"]["url"])
    desk.issuer.hold_exchange = asyncio.Event()
    opening = asyncio.create_task(browser.open(callback))
    await desk.issuer.exchanging.wait()
    database = desk.server.services.storage.database
    await database.rows(DELETE_ROWS)  # simulates an erasure before the issuer answers
    desk.issuer.hold_exchange.set()
    answer = await opening
    assert (answer.status_code, "was ended" in answer.text) == (400, True)
    assert await database.rows(GET_ROWS) == []
    assert [family.revoked for family in desk.issuer.families] == [True]
    assert await status(desk.client, turn) == "waiting"


DELETE_ROWS = Statement("DELETE FROM sign_ins RETURNING owner")


async def test_tokens_are_sealed_and_gone_with_their_owner(desk: Desk, browser: Browser) -> None:
    await signed_in(desk, browser)
    (family,) = desk.issuer.families
    database = desk.server.services.storage.database
    (row,) = await database.rows(GET_ROWS)
    assert not any(secret in row["line"] for secret in (*family.access, *family.refresh, family.client))
    async for _ in Owners(database).erase("local"):
        pass
    assert await database.rows(GET_ROWS) == []


async def test_an_erasure_revokes_tokens_at_their_issuer(
    database_url: str, desk: Desk, browser: Browser, tmp_path: Path
) -> None:
    await signed_in(desk, browser)
    (family,) = desk.issuer.families
    tools = tmp_path / "tools.toml"
    tools.write_text(TOOLS.format(url=desk.calendar.url))
    settings = Settings(_env_file=None, database_url=database_url, master_key=desk.key, tools_file=tools)
    assert (await _erase(settings, "local"))["sign_ins"] == 1
    assert desk.issuer.revocations == [family.refresh[-1], family.access[-1]]


async def test_an_erasure_continues_without_a_revocation(
    database_url: str, desk: Desk, browser: Browser, tmp_path: Path
) -> None:
    await signed_in(desk, browser)
    settings = Settings(_env_file=None, database_url=database_url, tools_file=tmp_path / "gone.toml")
    with capture_logs() as logs:
        assert (await _erase(settings, "local"))["sign_ins"] == 1
    assert [line["servers"] for line in logs if line["event"] == "mcp.not_revoked"] == [["calendar"]]


GET_ROWS = Statement("SELECT CAST(sign_ins AS text) AS line FROM sign_ins")


async def test_a_sign_in_that_comes_before_the_ask_is_stored_answers_it(desk: Desk, browser: Browser) -> None:
    earlier = await desk.ask()
    link = (await waiting(desk.client, earlier))["input"]["url"]
    callback, database = await browser.consent(link), desk.server.services.storage.database
    await database.rows(SLOW_ASKS)
    await database.rows(SLOW_TRIGGER)
    async with database.transaction() as connection:
        await connection.rows(HOLD_ASKS)
        turn = await desk.ask(None, ("a", "invite"))
        while not (await database.rows(GET_HELD))[0]["number"]:  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.02)
        assert (await browser.open(callback)).status_code == 200
        assert await results(desk.client, earlier) == {"a": "events of ada"}
        desk.calendar.hold = asyncio.Event()
    await desk.calendar.holding.wait()
    started = await database.rows(GET_STARTED, turn=UUID(turn.assistant["id"]))
    assert len(started) == 1, "the ledger has the call again before it is made"
    desk.calendar.hold.set()
    assert await results(desk.client, turn) == {"a": "ada has invited bob"}


SLOW_ASKS = Statement(
    """
    CREATE FUNCTION slow_ask() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NEW; END'
    """
)
SLOW_TRIGGER = Statement("CREATE TRIGGER slow_ask BEFORE INSERT ON asks FOR EACH ROW EXECUTE FUNCTION slow_ask()")
HOLD_ASKS = Statement("SELECT pg_advisory_xact_lock(4711)")
GET_HELD = Statement(
    "SELECT count(*) AS number FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 4711"
)


# --- a server that is killed ------------------------------------------------------------------------------------------


def process_at(database_url: str, place: Office, tmp_path: Path) -> Process:
    tools = tmp_path / "tools.toml"
    tools.write_text(TOOLS.format(url=place.calendar.url))
    settings = {
        "TURNSTREAM_TOOLS_FILE": str(tools),
        "TURNSTREAM_SIGN_IN_URL": BASE,
        "TURNSTREAM_MASTER_KEY": new_master_key(),
        "TURNSTREAM_MODEL": "demo",
    }
    return Process(database_url, tmp_path, settings)


@pytest.mark.timeout(180)
async def test_a_kill_between_consent_and_continuation_loses_nothing(
    database_url: str, document: Document, place: Office, tmp_path: Path
) -> None:
    server = process_at(database_url, place, tmp_path)
    await server.start()
    try:
        async with Client(server.url, document) as client, Browser(server.url) as browser:
            turn = await client.say(await client.chat(), '/call calendar__invite {"guest": "bob"}')
            link = (await waiting(client, turn))["input"]["url"]
            await until_waiting(client, turn)
            await server.restart(signal.SIGKILL)
            callback = await browser.consent(link)
            await server.restart(signal.SIGKILL)
            assert (await browser.open(callback)).status_code == 200
            await server.restart(signal.SIGKILL)  # the server is killed at an arbitrary point of the turn
            (words,) = (await results(client, turn)).values()
            assert words in {"ada has invited bob", OUTCOME_UNKNOWN}
            assert place.calendar.calls <= 1
            again = await client.say(await client.chat(), "/call calendar__events {}")
            assert list((await results(client, again)).values()) == ["events of ada"]
    finally:
        await server.close()


@pytest.mark.timeout(180)
async def test_a_kill_in_the_middle_of_a_refresh_asks_for_a_sign_in(
    database_url: str, document: Document, place: Office, tmp_path: Path
) -> None:
    server = process_at(database_url, place, tmp_path)
    await server.start()
    try:
        async with Client(server.url, document) as client, Browser(server.url) as browser:
            first = await client.say(await client.chat(), "/call calendar__events {}")
            await browser.sign_in((await waiting(client, first))["input"]["url"])
            assert list((await results(client, first)).values()) == ["events of ada"]
            (family,) = place.issuer.families
            family.access.append("rotated elsewhere")
            place.issuer.hold = asyncio.Event()
            turn = await client.say(await client.chat(), "/call calendar__events {}")
            await place.issuer.holding.wait()
            await server.kill()
            place.issuer.hold.set()  # the issuer now replaces the refresh token, but no process receives the new token
            await place.issuer.refreshed.wait()
            place.issuer.hold = None
            async with connect(database_url, size=1) as database:
                await database.rows(END_LEASES)  # simulates half a minute without renewals
            await server.start()
            action = await waiting(client, turn)
            assert place.issuer.refused == ["invalid_grant: reused"]
            await browser.sign_in(action["input"]["url"])
            assert list((await results(client, turn)).values()) == ["events of ada"]
    finally:
        await server.close()


END_LEASES = Statement("UPDATE sign_ins SET refreshing_until = now() RETURNING owner")


# --- forged answers of servers and issuers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"issuer": "http://evil.example"}, "names itself"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"code_challenge_methods_supported": None}, "PKCE"),
        ({"token_endpoint": "ftp://127.0.0.1/token"}, "names no issuer"),
        ({"registration_endpoint": None}, "must set `client_id`"),
        ({"token_endpoint": "https://127.0.0.2/token"}, "internal address"),
        ({"token_endpoint": "https://169.254.169.254/latest"}, "internal address"),
        ({"revocation_endpoint": "http://example.com/revoke"}, "must begin with https"),
        ({"authorization_endpoint": "https://accounts.example.com@127.0.0.1/authorize"}, "must not hold a user"),
        ({"registration_endpoint": "https://localhost/register"}, "its address is internal"),
        ({"scopes_supported": ["x" * 500_000, "y" * 500_000]}, "sent more than"),
    ],
)
async def test_an_issuer_that_cannot_be_trusted_is_not_signed_in_to(
    desk: Desk, browser: Browser, changed: Mapping[str, Any], words: str
) -> None:
    link = (await waiting(desk.client, await desk.ask()))["input"]["url"]
    metadata = {**desk.issuer.metadata, **changed}
    desk.issuer.metadata = {name: value for name, value in metadata.items() if value is not None}
    answer = await browser.open(link)
    if answer.status_code == 200:
        answer = await browser.proceed(link)
    assert (answer.status_code, words in answer.text) == (502, True), answer.text


@pytest.mark.parametrize(
    ("protected", "words"),
    [
        ({"authorization_servers": ["https://10.0.0.1"]}, "internal address"),
        ({"authorization_servers": ["https://localhost:1"]}, "its address is internal"),
        ({"authorization_servers": ["http://login.example.com"]}, "must begin with https"),
        ({"resource": "https://other.example.com/mcp"}, "about another server"),
        (RedirectResponse("http://127.0.0.1:1/steal"), "names no issuer"),
        (Response(b"{}" + b" " * 1_000_001), "sent more than"),
        (Response(b"[1]"), "names no issuer"),
    ],
)
async def test_a_server_leads_to_no_internal_address_and_to_no_other_server(
    desk: Desk, browser: Browser, protected: Response | Mapping[str, Any], words: str
) -> None:
    link = (await waiting(desk.client, await desk.ask()))["input"]["url"]
    if not isinstance(protected, Response):
        protected = {**desk.calendar.described, **protected}
    desk.calendar.protected = protected
    answer = await browser.open(link)
    assert (answer.status_code, words in answer.text) == (502, True), answer.text


async def test_the_issuer_of_the_settings_is_the_only_one(database_url: str, document: Document, place: Office) -> None:
    pinned = place.issuer.url
    async with (
        desk_at(database_url, document, place, new_master_key(), issuer=pinned) as desk,
        Browser(desk.server.url) as browser,
    ):
        link = (await waiting(desk.client, await desk.ask()))["input"]["url"]
        place.calendar.protected = {**place.calendar.described, "authorization_servers": ["https://evil.example"]}
        refused = await browser.open(link)
        assert (refused.status_code, f"and not {pinned} of the settings" in refused.text) == (502, True)
        place.calendar.protected = Response(status_code=404)  # a server from before RFC 9728
        assert (await browser.sign_in(link)).status_code == 200


async def test_a_server_without_metadata_is_its_own_issuer_and_no_other(desk: Desk, browser: Browser) -> None:
    link = (await waiting(desk.client, await desk.ask()))["input"]["url"]
    desk.calendar.protected = Response(status_code=404)
    # The MCP server names a foreign issuer, which would receive the codes.
    desk.calendar.issuer_metadata = desk.issuer.metadata
    refused = await browser.open(link)
    assert (refused.status_code, "names itself" in refused.text) == (502, True), refused.text


@pytest.mark.extensions("mcp", "inbox")
async def test_only_the_principals_of_the_server_sign_in_for_an_owner(
    database_url: str, document: Document, place: Office
) -> None:
    named: dict[str, Any] = {"sign_in_by": ("role:secretary",)}
    async with AsyncExitStack() as stack:
        desk = await stack.enter_async_context(desk_at(database_url, None, place, new_master_key(), **named))
        tokens = {"ada": await desk.server.token("ada"), "bob": await desk.server.token("bob")}
        tokens["grace"] = await desk.server.token("grace", roles=frozenset({"secretary"}))
        ada, bob, grace = [
            await stack.enter_async_context(Client(desk.server.url, None, tokens[name], name))
            for name in ("ada", "bob", "grace")
        ]
        turn = await desk.ask(ada)
        action = await waiting(ada, turn)
        decline = {"type": "answer", "tool_use_id": action["tool_use_id"], "input_digest": action["input_digest"]}
        await ada.json("POST", f"{turn.url}/actions", 403, json={"actions": [{**decline, "action": "decline"}]})
        assert (await bob.json("GET", "/api/approvals"))["calls"] == []
        (asked,) = (await grace.json("GET", "/api/approvals"))["calls"]
        assert (asked["type"], asked["owner"], asked["name"]) == ("sign_in", "ada", "calendar__events")
        link = json.loads(asked["input"])["url"]
        assert link == action["input"]["url"]
        for authorization, status in (("", 401), (f"Bearer {tokens['ada']}", 403), (f"Bearer {tokens['bob']}", 403)):
            async with Browser(desk.server.url) as browser:
                refused = await browser.open(link, authorization=authorization)
                assert (refused.status_code, "role:secretary" in refused.text) == (status, True)
        desk.issuer.subject = "office"
        async with Browser(desk.server.url) as browser:
            shown = await browser.open(link, authorization=f"Bearer {tokens['grace']}")
            assert "you may sign in for this person" in shown.text
            (action_of_form,) = re.findall(r'<form method="post" action="([^"]+)">', shown.text)
            there = await browser.open(f"{link}{action_of_form}", "POST", f"Bearer {tokens['grace']}")
            back = await browser.open(there.headers["location"])
            assert (await browser.open(back.headers["location"])).status_code == 200
        assert await results(ada, turn) == {"a": "events of office"}
        connection = await asyncpg.connect(database_url)
        made = await connection.fetchrow("SELECT owner, actor FROM audit WHERE kind = 'sign_in.made'")
        token = await connection.fetchval("SELECT id FROM tokens WHERE owner = 'grace'")
        await connection.close()
        assert made is not None
        assert tuple(made) == ("ada", f"token:{token}")
