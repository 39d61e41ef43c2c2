"""Many tabs of one browser, which opens six connections to one server at most."""

import asyncio

import pytest

from app.api.http import auth
from app.llm.scripted import Pause
from app.storage.tokens import Tokens
from app.telemetry import STREAMS_OPEN
from tests.browser.conftest import SitDown
from tests.browser.person import Person, new_tab
from tests.browser.scenes import paused
from tests.browser.test_talk import use
from tests.support.http_client import Client, said
from tests.support.http_server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


# As one whose script cannot be loaded.
BROKEN = """class extends EventTarget {
  port = new MessageChannel().port1
  constructor() { super(); setTimeout(() => this.dispatchEvent(new Event('error')), 100) }
}"""


_FOLLOW = """async ([good, bad]) => {
  const { SharedLine } = await import('/static/shared.js')
  const line = SharedLine.open()
  const follow = (chat, cursor) =>
    line.follow(chat, null, { cursor, connection() {} }).next().then(({ value }) => value.event, (error) => error)
  const [told, refused] = await Promise.all([follow(good), follow(bad, 'x')])
  const before = line.broken
  const many = await Promise.all(Array.from({ length: 100 }, () => follow(good)))
  return [told, refused.status, before, many.filter((one) => one !== 'chat').map((one) => one.message), line.broken]
}"""


async def streams_are(count: int) -> None:
    """Returns once so many are open. A stream that a browser has left is closed by the server a little later."""
    async with asyncio.timeout(10):
        while STREAMS_OPEN._value.get() != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_eight_tabs_are_live_on_one_connection_and_go_on_when_one_of_them_is_closed(
    people: SitDown, site: Server, api: Client
) -> None:
    await streams_are(0)
    pauses = [Pause() for _ in range(6)]
    chats = [await use(api, site.scripts.model(paused(pause, "One ", "two."))) for pause in pauses]
    ada = await people(f"{site.url}/#{chats[0]}")
    others = [new_tab(ada.context, f"{site.url}/#{chat}") for chat in [*chats[1:], *chats[:2]]]
    tabs = [ada, *await asyncio.gather(*others)]
    for chat in chats:
        await api.json("POST", f"/api/chats/{chat}/turns", 201, json=said("Count"))
    await asyncio.gather(*(tab.sees("One") for tab in tabs))
    await streams_are(1)
    await tabs.pop().page.close()
    for pause in pauses:
        pause.go.set()
    await asyncio.gather(*(tab.sees_end() for tab in tabs))
    await asyncio.gather(*(tab.sees_what_is_stored(api) for tab in tabs))
    assert [tab.troubles() for tab in tabs] == [[]] * len(tabs)


async def test_one_that_is_refused_ends_nothing_for_others_and_who_has_no_room_goes_alone(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(f"{site.url}/static/theme.js")
    ada.expects("favicon")
    chats = [await use(api, "plain") for _ in range(2)]
    found = await ada.page.evaluate(_FOLLOW, chats)
    assert found == ["chat", 400, False, ["the shared connection is full"], True]


@pytest.mark.parametrize("worker", ["undefined", BROKEN], ids=["absent", "broken"])
async def test_without_a_shared_worker_that_works_a_tab_has_a_connection_of_its_own(
    people: SitDown, site: Server, api: Client, worker: str
) -> None:
    ada: Person = await people(f"{site.url}/static/theme.js")
    ada.expects("favicon")
    await ada.page.add_init_script(f"globalThis.SharedWorker = {worker}")
    await ada.page.goto(site.url)
    await ada.ready()
    await ada.say("Hello")
    await ada.sees_end()
    await ada.sees_what_is_stored(api)


async def test_a_token_that_was_taken_back_is_asked_for_again_and_every_tab_goes_on(
    people: SitDown, site: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "BELIEVED", 0.0)  # seconds: each call asks the table
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
    for tab in (ada, other):
        await tab.page.evaluate("dispatchEvent(new Event('focus'))")
        await tab.page.get_by_text("this token is not known here, or no more").wait_for()
    await ada.page.get_by_label("Token", exact=True).fill(new)
    await ada.page.get_by_label("Keep it in this browser").check()
    await ada.press("Go on")
    await ada.say("Still there?")
    await other.sees("Still there?")
    for tab in (ada, other):
        await tab.sees_end()
    assert other.troubles() == []
