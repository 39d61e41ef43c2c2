"""The search of chats on the page is done by the server."""

import asyncio
import re

import pytest
from playwright.async_api import Request, expect

from tests.browser.conftest import SitDown
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.scripted import message_of, text
from turnstream.storage.database import Statement

pytestmark = pytest.mark.asyncio(loop_scope="session")

MANY_CHATS = Statement(
    """
    INSERT INTO chats (id, owner, title, settings, updated_at)
    SELECT gen_random_uuid(), 'local', 'Chat ' || number, '{}', now() - make_interval(secs => 201 - number)
    FROM generate_series(0, 200) AS number
    """
)


async def test_a_chat_is_found_by_its_text_with_one_request_for_a_word(
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
    assert await links.all_inner_texts() == ["Sailing\nWhere does the lighthouse stand?"]
    assert asked == ["LIGHThouse"]
    ada.expects("422")
    await ada.page.fill("#search", "1 2 3 4 5 6 7 8 9")
    await ada.page.get_by_text("Nothing was searched: `q` must have at most 8 words.").wait_for()
    await expect(links).to_have_count(0)
    await ada.page.keyboard.press("Escape")
    await expect(links).to_have_count(2)


async def test_a_match_is_marked_never_run_and_leads_to_its_turn(people: SitDown, site: Server, api: Client) -> None:
    chat = f"/api/chats/{await use(api, 'plain', 'Sailing')}"
    await api.ask(chat, "What does <img src=x onerror=harmed=1> the lighthouse say?")
    for _ in range(8):
        await api.ask(chat, "And then? " * 60)
    ada = await people(site.url)
    link = ada.page.locator("#chats a")
    await ada.page.fill("#search", "LIGHThouse img")
    await expect(link.locator("mark")).to_have_text(["img", "lighthouse"])
    assert await link.locator("img").count() == 0
    await ada.page.evaluate("dispatchEvent(new Event('focus'))")
    await link.click()
    await expect(ada.page.get_by_text("the lighthouse say?").last).to_be_in_viewport()
    await expect(link.locator("mark")).to_have_text(["img", "lighthouse"])
    await ada.page.fill("#search", "sail")
    await expect(link.locator(".title mark")).to_have_text(["Sail"])
    await link.click()
    await expect(ada.page.get_by_text("And then?").last).to_be_in_viewport()
    assert await ada.page.evaluate("globalThis.harmed") is None


@pytest.mark.full
async def test_words_are_marked_inside_rendered_markdown(people: SitDown, site: Server, api: Client) -> None:
    answer = "## The **light**house\n\n- `light` *on*\n\n| at | the |\n|---|---|\n| night | light |\n"
    model = site.scripts.model(message_of(text(answer)))
    await api.ask(f"/api/chats/{await use(api, model, 'Sailing')}", "Where?", model=model)
    ada = await people(site.url)
    link = ada.page.locator("#chats a")
    await ada.page.fill("#search", "lighthouse")
    await expect(link).to_have_count(0)
    await ada.page.fill("#search", "LIGHT")
    await expect(link.locator(".excerpt")).to_have_text(re.compile("^The light.*light on"))
    await expect(link.locator("mark")).to_have_text(["light"] * 3)
    await link.click()
    await ada.page.wait_for_function("() => CSS.highlights.get('found')?.size === 3")
    assert await ada.page.evaluate("() => [...CSS.highlights.get('found')].map(String)") == ["light"] * 3
    assert await ada.page.locator("#turns .prose h2 strong").inner_text() == "light"
    await ada.page.evaluate("() => { location.hash = '' }")
    await ada.page.wait_for_function("() => !CSS.highlights.has('found')")


@pytest.mark.full
async def test_a_search_is_aborted_when_another_letter_is_typed(people: SitDown, site: Server, api: Client) -> None:
    await use(api, "plain", "Sailing")
    ada = await people(site.url)
    page, never = ada.page, asyncio.Event()
    await page.route("**/api/chats?*q=Sai&*", lambda _: never.wait())
    await page.route("**/api/chats?*q=Sai", lambda _: never.wait())
    async with page.expect_event("requestfailed", lambda request: "q=Sai" in request.url):
        async with page.expect_request("**/api/chats?*q=Sai*"):
            await page.fill("#search", "Sai")
        await page.fill("#search", "Cook")
    await expect(page.locator("#chats a")).to_have_count(0)
    never.set()


@pytest.mark.full
async def test_chats_that_were_paged_to_stay_when_a_new_one_is_made(people: SitDown, site: Server, api: Client) -> None:
    await site.services.storage.database.rows(MANY_CHATS)
    ada = await people(site.url)
    links, more = ada.page.locator("#chats a"), ada.page.locator("#more-chats")
    await expect(links).to_have_count(100)
    await more.click()
    await expect(links).to_have_count(200)
    await api.chat(title="New")
    await ada.page.evaluate("dispatchEvent(new Event('focus'))")
    await expect(links).to_have_count(201)
    await more.click()
    await expect(links).to_have_count(202)
    assert await links.all_inner_texts() == ["New", *(f"Chat {number}" for number in reversed(range(201)))]


@pytest.mark.full
async def test_a_match_at_the_end_of_a_long_title_is_seen_whole(people: SitDown, site: Server, api: Client) -> None:
    await api.json("POST", "/api/chats", 201, json={"title": "All that was asked of the keeper of the lighthouse"})
    ada = await people(site.url)
    await ada.page.fill("#search", "lighthouse")
    mark = await ada.page.locator("#chats mark").bounding_box()
    title = await ada.page.locator("#chats .title").bounding_box()
    assert mark
    assert title
    assert mark["x"] + mark["width"] <= title["x"] + title["width"]
    assert mark["y"] + mark["height"] <= title["y"] + title["height"] + 1
