"""Apps of MCP servers on the page: a correct app, and a malicious app."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.test_talk import use
from tests.extensions.mcp.mcp_servers import APPS
from tests.extensions.mcp.test_offers import place_with
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.scripted import message_of, text, tool_use
from turnstream.tools.policy import Policy

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.extensions("mcp")]
ATTACKS = "document storage cookie api elsewhere top popup eval message context foreign unseen flood link"
ASKING = replace(APPS, policies={"erase": Policy(approval="always")})


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str) -> AsyncIterator[Server]:
    async with place_with(database_url, None, ASKING) as place:
        yield place.server


async def test_an_app_shows_its_result_and_proposes_a_message(people: SitDown, site: Server, api: Client) -> None:
    rounds = [message_of(tool_use("apps__chart", {"place": "Sund"}, "call_1")), message_of(text("See the chart."))]
    ada = await people(site.url, await use(api, site.scripts.model(*rounds)))
    await ada.say("Waves?")
    await ada.sees_end()
    await ada.press("Open the app")
    frame = ada.page.frame_locator(".app iframe")
    await expect(frame.locator("#title")).to_have_text("Waves at Sund")
    await expect(frame.locator("#bars > div")).to_have_count(5)
    await expect(frame.locator("#theme")).to_have_text("light")
    await expect(ada.page.locator(".app iframe")).to_have_attribute("height", "300")
    if folder := os.environ.get("SCREENSHOTS"):
        for scheme in ("light", "dark"):
            await ada.page.emulate_media(color_scheme=scheme)
            await ada.page.screenshot(path=Path(folder) / f"app-{scheme}.png")
    await frame.locator("#ask").click()
    await expect(frame.locator("#answer")).to_have_text('[{"result":[7]},"proposed"]')
    card = ada.page.locator(".app-calls .card")
    await expect(card).to_have_attribute("data-state", "done")
    await expect(card.locator(".name")).to_have_text("apps__refresh")
    await expect(ada.page.locator("#words")).to_have_value("How high was the highest wave?")
    assert len(await ada.sees_what_is_stored(api)) == 2  # the app has sent no message
    await ada.reload()
    await ada.press("Open the app")
    await expect(card.locator(".name")).to_have_text("apps__refresh")


async def test_an_app_that_attacks_reaches_nothing(people: SitDown, site: Server, api: Client) -> None:
    rounds = [message_of(tool_use("apps__trap", {}, "call_1")), message_of(text("Be careful."))]
    ada = await people(site.url, await use(api, site.scripts.model(*rounds)))
    ada.expects("evil.example", "Content Security Policy", "sandbox", "Unsafe attempt", "/api/me", "Blocked", "404")
    asked: list[str] = []
    ada.context.on("request", lambda request: asked.append(request.url))
    await ada.say("Go")
    await ada.sees_end()
    await ada.press("Open the app")
    frame = ada.page.frame_locator(".app iframe")
    await expect(frame.locator("#held")).to_have_text(ATTACKS)
    await expect(frame.locator("#erased")).to_be_empty()
    await ada.press("Deny", ada.page.locator(".app-calls .ask"))
    await expect(frame.locator("#erased")).to_contain_text("The user did not allow this call")
    await expect(ada.page.locator(".app iframe")).to_have_attribute("height", "640")
    await expect(ada.page.locator("#words")).to_have_value("")
    await frame.locator("body").click()  # navigates the frame to a page with another policy, and gets no HTML
    await expect(ada.page.locator(".app")).to_contain_text("The app has left its page and was closed.")
    await expect(ada.page.locator(".app iframe")).to_have_count(0)
    assert not [url for url in asked if url.startswith("https:")]
    assert len(ada.context.pages) == 1
    assert len(await ada.sees_what_is_stored(api)) == 2
