"""Many tabs of one browser, which opens at most six HTTP/1.1 connections to a server for all its tabs."""

import asyncio

import pytest

from tests.browser.conftest import SitDown
from tests.browser.person import Person, new_tab
from tests.browser.scenes import Harbour, one_call, paused
from tests.browser.test_talk import use
from tests.support.http_client import Client, said
from tests.support.http_server import Server
from turnstream.scripted import Pause
from turnstream.storage.owners.tokens import Tokens
from turnstream.telemetry import STREAMS_OPEN

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Headless Chromium reports every tab as visible, so the tests set the visibility of the document.
_SET_HIDDEN = """(hidden) => {
  Object.defineProperty(document, 'hidden', { value: hidden, configurable: true })
  Object.defineProperty(document, 'visibilityState', { value: hidden ? 'hidden' : 'visible', configurable: true })
  document.dispatchEvent(new Event('visibilitychange'))
}"""


async def hide(tab: Person) -> None:
    await tab.page.evaluate(_SET_HIDDEN, True)


async def show(tab: Person) -> None:
    await tab.page.evaluate(_SET_HIDDEN, False)


async def streams_are(count: int) -> None:
    """Waits until `count` streams are open. The server closes a stream shortly after the browser does."""
    async with asyncio.timeout(60):
        while STREAMS_OPEN._value.get() != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_eight_tabs_of_which_one_is_shown_hold_two_connections_and_each_catches_up_when_it_is_shown(
    people: SitDown, site: Server, api: Client
) -> None:
    await streams_are(0)
    pauses = [Pause() for _ in range(8)]
    chats = [await use(api, site.scripts.model(paused(pause, "One ", "two."))) for pause in pauses]
    ada = await people(f"{site.url}/#{chats[0]}")
    tabs = [ada]
    for chat in chats[1:]:
        await hide(tabs[-1])
        tabs.append(await new_tab(ada.context, f"{site.url}/#{chat}"))
    await streams_are(2)
    for chat in chats:
        await api.json("POST", f"/api/chats/{chat}/turns", 201, json=said("Count"))
    await tabs[-1].sees("One")
    await hide(tabs[-1])
    await streams_are(0)
    await show(tabs[0])
    await tabs[0].sees("One")
    await streams_are(2)
    for pause in pauses:
        pause.go.set()
    for tab in tabs:
        await show(tab)
        await tab.sees_end()
        await tab.sees_what_is_stored(api)
        await hide(tab)
    await streams_are(0)
    assert [tab.troubles() for tab in tabs] == [[]] * len(tabs)


async def test_a_tab_that_is_hidden_for_a_moment_keeps_its_connections(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(site.url, await use(api, "plain"))
    await streams_are(2)
    requests: list[str] = []
    ada.page.on("request", lambda request: requests.append(request.url) if "/stream" in request.url else None)
    await hide(ada)
    await show(ada)
    await ada.say("Hello")
    await ada.sees_end()
    assert requests == []


async def test_windows_side_by_side_share_one_feed_which_outlives_the_one_that_reads_it(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(site.url)
    others = [await new_tab(ada.context, site.url) for _ in range(3)]
    await streams_are(1)
    chat = await api.json("POST", "/api/chats", 201, json={"title": "From elsewhere"})
    for tab in (ada, *others):
        await tab.page.get_by_role("link", name="From elsewhere").wait_for()
    await others.pop().page.close()
    await api.json("PATCH", f"/api/chats/{chat['id']}", json={"title": "Renamed meanwhile"})
    await others[0].page.evaluate("dispatchEvent(new Event('focus'))")
    for tab in (ada, *others):
        await tab.page.get_by_role("link", name="Renamed meanwhile").wait_for()
    await streams_are(1)
    await ada.page.get_by_role("link", name="Renamed meanwhile").hover()
    await ada.press("Delete Renamed meanwhile")
    await ada.press("Delete")
    for tab in (ada, *others):
        await tab.page.get_by_role("link", name="Renamed meanwhile").wait_for(state="detached")
    assert [tab.troubles() for tab in others] == [[]] * len(others)


async def test_the_list_marks_chats_that_are_being_answered_or_wait_for_a_person(
    people: SitDown, site: Server, api: Client, harbour: Harbour
) -> None:
    call = one_call("book_berth", {"port": "Kiel", "nights": 2})
    pause = Pause()
    chat = await use(api, site.scripts.model(paused(pause, "One ", "two."), call), "Berths")
    ada = await people(site.url)
    item = ada.page.locator("#chats li", has_text="Berths")
    await item.wait_for()
    assert await item.get_by_role("img").count() == 0
    await api.json("POST", f"/api/chats/{chat}/turns", 201, json=said("Count"))
    await item.get_by_role("img", name="Answering").wait_for()
    await ada.reload()
    await item.get_by_role("img", name="Answering").wait_for()
    pause.go.set()
    await item.get_by_role("img", name="A new answer").wait_for()
    await api.json("POST", f"/api/chats/{chat}/turns", 201, json=said("Book"))
    await item.get_by_role("img", name="Waiting for you").wait_for()


async def test_a_list_whose_cursor_is_too_old_is_read_again(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url)
    await hide(ada)
    await streams_are(0)
    await use(api, "plain", "Made meanwhile")
    await ada.page.route(
        "**/api/stream",
        lambda route: route.fulfill(content_type="text/event-stream", body="id: 1\nevent: reset\ndata: {}\n\n"),
        times=1,
    )
    await show(ada)
    await ada.page.get_by_role("link", name="Made meanwhile").wait_for()
    await streams_are(1)


async def test_without_locks_each_tab_reads_the_feed_for_itself(people: SitDown, site: Server, api: Client) -> None:
    """On a page that another machine serves over plain HTTP, browsers offer no locks."""
    ada = await people(f"{site.url}/static/theme.js")
    ada.expects("favicon")
    await ada.context.add_init_script("Object.defineProperty(navigator, 'locks', { value: undefined })")
    await ada.page.goto(site.url)
    await ada.ready()
    other = await new_tab(ada.context, site.url)
    await streams_are(2)
    await use(api, "plain", "From elsewhere")
    for tab in (ada, other):
        await tab.page.get_by_role("link", name="From elsewhere").wait_for()


async def test_a_deleted_token_is_requested_again_and_every_tab_continues(
    people: SitDown, site: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.api.identity.stored.BELIEVED", 0.0)  # seconds: every call reads the table
    old = await site.token("ada")
    ada = await people(f"{site.url}/static/theme.js")
    await ada.page.evaluate("(token) => localStorage.setItem('turnstream.token', token)", old)
    ada.expects("401", "favicon")
    await ada.page.goto(site.url)
    await ada.ready()
    await ada.say("Hello")
    await ada.sees_end()
    other = await new_tab(ada.context, ada.page.url)
    other.expects("401")
    tokens = Tokens(site.services.storage.database)
    (only,) = await tokens.list()
    new = await site.token("ada")
    await tokens.delete(only.name)
    for tab in (ada, other):  # both tabs return with the deleted token
        await hide(tab)
    await streams_are(0)
    for tab in (ada, other):
        await show(tab)
        await tab.page.locator("#ask-token[open]").wait_for()
    await ada.page.get_by_label("Token", exact=True).fill(new)
    await ada.page.get_by_label("Keep it in this browser").check()
    await ada.press("Go on")
    await ada.say("Still there?")
    await other.sees("Still there?")
    for tab in (ada, other):
        await tab.sees_end()
    assert other.troubles() == []
