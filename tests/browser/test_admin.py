"""The page for operators: the display of running and waiting turns, and the effects of its buttons."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from tests.browser.conftest import SitDown
from tests.browser.person import Person
from tests.browser.scenes import one_call, paused
from tests.browser.test_budgets import violations
from tests.support.http_client import Client, Said
from tests.support.http_server import Server
from turnstream.scripted import Pause, message_of, text

pytestmark = [pytest.mark.extensions("admin"), pytest.mark.asyncio(loop_scope="session")]


def card(ada: Person, said: Said) -> Locator:
    return ada.page.locator(f"#open-turns li[data-id='{said.assistant['id']}']")


async def act(ada: Person, within: Locator, name: str) -> None:
    """Presses the button of an action, and confirms it."""
    await within.get_by_role("button", name=name).click()
    await ada.page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()


async def status_of(api: Client, said: Said) -> str:
    await api.events(said.stream_url)
    return str((await api.json("GET", said.url))["status"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_running_and_a_waiting_turn_are_watched_and_acted_upon(
    people: SitDown, site: Server, api: Client, scheme: str
) -> None:
    pause = Pause()
    ada = await people(f"{site.url}/admin", color_scheme=scheme)
    again = site.scripts.model(paused(pause, "One ", "two."), message_of(text("Two.")))
    running = await api.say(await api.chat(), model=again)
    asks = site.scripts.model(one_call("book_berth", {"port": "x", "nights": 1}))
    waiting = await api.say(await api.chat(), model=asks)
    await pause.reached.wait()
    await expect(card(ada, running).locator(".badge")).to_have_text("running")
    await expect(card(ada, waiting).locator(".why")).to_contain_text("The turn waits for an approval of book_berth")
    await expect(ada.page.locator("#replicas .load")).to_have_text("1 turn")
    assert await violations(ada) == []
    await act(ada, card(ada, waiting), "Stop")
    await expect(card(ada, waiting)).to_have_count(0)
    assert await status_of(api, waiting) == "cancelled"
    await act(ada, card(ada, running), "Re-queue")
    await expect(card(ada, running)).to_have_count(0)
    assert await status_of(api, running) == "complete"
    await expect(ada.page.locator("#models tbody th").first).to_be_visible(timeout=60_000)
    assert await violations(ada) == []
    replica = ada.page.locator("#replicas li")
    await act(ada, replica, "Drain")
    await expect(replica.locator(".badge")).to_have_text("draining")
    assert (await api.get("/readyz")).status_code == 503
    await expect(replica.get_by_role("button")).to_have_count(0)


@pytest_asyncio.fixture(loop_scope="session")
async def tokens(site: Server) -> AsyncIterator[list[str]]:
    yield [await site.token("ada"), await site.token("ops", "admin")]


async def test_an_operators_token_is_asked_for_until_it_has_the_scope(
    people: SitDown, site: Server, tokens: list[str]
) -> None:
    of_a_person, of_an_operator = tokens
    ada = await people(f"{site.url}/admin")
    ada.expects("401", "403")
    for token, reason in (
        (of_a_person, "This page needs a token"),
        (of_an_operator, "needs the scope `admin`"),
    ):
        await expect(ada.page.locator("#why-token")).to_contain_text(reason)
        await ada.page.fill("#ask-token input[name=token]", token)
        await ada.press("Go on")
    await expect(ada.page.locator("#as-of")).to_contain_text("as of")
    assert await ada.page.evaluate("sessionStorage.getItem('turnstream.token')") is None
