"""A chat that is shared by a link: the dialog of its owner, and the page of people who have the link."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.scenes import Harbour
from tests.browser.test_budgets import violations
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server, pausing, serving
from turnstream.scripted import Pause, message_of, text, thinking

pytestmark = [pytest.mark.extensions("sharing"), pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str, harbour: Harbour, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    async with serving(database_url, harbour.toolset(), sharing=getattr(request, "param", True)) as server:
        yield server


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_live_link_is_made_read_and_revoked(people: SitDown, site: Server, api: Client, scheme: str) -> None:
    pause = Pause()
    first = message_of(
        thinking("a secret thought"), text("# Tides\n\nThe **moon** pulls. <img src=x onerror=alert(1)>")
    )
    chat = await use(api, site.scripts.model(first, pausing(pause, "The sun ", "pulls too.")))
    ada = await people(site.url, chat, color_scheme=scheme)
    await ada.say("Why are there tides?")
    await expect(ada.page.locator("#turns strong")).to_have_text("moon")
    await ada.page.get_by_label("Export and share").click()
    await ada.page.get_by_role("button", name="Share by a link").click()
    dialog = ada.page.get_by_role("dialog")
    await dialog.get_by_label("Show messages that come later, too").check()
    await dialog.get_by_role("button", name="Make a link").click()
    address = await dialog.get_by_label("Address of the link").input_value()
    assert await violations(ada) == []
    await dialog.get_by_role("button", name="Close").click()

    eve = await people(address, color_scheme=scheme)
    await expect(eve.page.locator("article.user")).to_have_text("Why are there tides?")
    await expect(eve.page.locator("article.assistant strong")).to_have_text("moon")
    assert await eve.page.locator("article img").count() == 0
    assert "secret" not in await eve.page.content()
    assert await violations(eve) == []

    await ada.say("And the sun?")
    await expect(eve.page.locator("article.assistant").nth(1)).to_contain_text("The sun")
    pause.go.set()
    await expect(eve.page.locator("article.assistant").nth(1)).to_have_text("The sun pulls too.")

    eve.expected.append("404")
    await ada.page.get_by_label("Export and share").click()
    await ada.page.get_by_role("button", name="Share by a link").click()
    assert await dialog.get_by_label("Address of the link").count() == 0, "the secret is shown once"
    await dialog.get_by_role("button", name="Revoke the link").click()
    await expect(dialog.get_by_role("listitem")).to_have_count(0)
    await expect(eve.page.locator("#title")).to_have_text("This chat is not shared any more")
    await expect(eve.page.locator("article")).to_have_count(0)


@pytest.mark.parametrize("site", [False], indirect=True)
async def test_without_the_feature_the_page_offers_no_links(people: SitDown, site: Server) -> None:
    ada = await people(site.url)
    await ada.page.get_by_label("Export and share").click()
    await expect(ada.page.get_by_role("button", name="As Markdown")).to_be_visible()
    await expect(ada.page.get_by_role("button", name="Share by a link")).to_be_hidden()
