"""The list of chats is searched by the server."""

import pytest
from playwright.async_api import Request, expect

from tests.browser.conftest import SitDown
from tests.browser.test_talk import use
from tests.integration.api.client import Client
from tests.integration.api.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_chat_is_found_by_what_was_said_in_it_with_one_question_for_a_word(
    people: SitDown, site: Server, api: Client
) -> None:
    await api.ask(f"/api/chats/{await use(api, 'plain', 'Sailing')}", "Where does the lighthouse stand?")
    await use(api, "plain", "Cooking")
    ada = await people(site.url)
    asked: list[str] = []

    def note(request: Request) -> None:
        if "q=" in request.url:
            asked.append(request.url.partition("q=")[2])

    ada.page.on("request", note)
    links = ada.page.locator("#chats a")
    await expect(links).to_have_count(2)
    await ada.page.locator("#search").press_sequentially("LIGHThouse")
    await expect(links).to_have_count(1)
    assert await links.all_inner_texts() == ["Sailing"]
    assert asked == ["LIGHThouse"]
    await ada.page.keyboard.press("Escape")
    await expect(links).to_have_count(2)
