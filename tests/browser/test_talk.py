"""Daily use of the page: send, watch, reload, stop, edit, regenerate. The page shows the stored turns."""

from typing import Any

import pytest
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.person import new_tab
from tests.browser.scenes import Harbour, paused, three_calls
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.domain.errors import TransientError
from turnstream.scripted import Pause, Step, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def use(api: Client, model: str, title: str | None = None, **settings: Any) -> str:
    """Creates a chat that uses `model`."""
    chat = await api.json("POST", "/api/chats", 201, json={"title": title, "settings": {"model": model, **settings}})
    return str(chat["id"])


@pytest.mark.full
async def test_a_chat_exists_after_its_first_message(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url)
    await ada.page.get_by_text("What would you like to know?").wait_for()
    assert (await api.json("GET", "/api/chats"))["chats"] == []
    await ada.say("Hello there")
    await ada.sees_end()
    await ada.sees("Hello.")
    await ada.page.get_by_role("link", name="Hello there").wait_for()
    assert await ada.page.title() == "Hello there · turnstream"
    await ada.sees_what_is_stored(api)


async def test_an_answer_is_watched_with_its_thoughts_and_its_tools_side_by_side(
    people: SitDown, site: Server, api: Client, harbour: Harbour
) -> None:
    chat = await use(api, site.scripts.model(three_calls(), message_of(text("Go ", "at noon."))))
    ada = await people(site.url, chat)
    await ada.say("When can we cross?")
    card = ada.page.locator(".card")
    await ada.page.locator(".card[data-state=running]", has_text="asking the gauge of Cuxhaven").wait_for()
    await ada.page.locator(".card[data-state=done]", has_text="wind 4").wait_for()
    await ada.page.locator(".card[data-state=failed]", has_text="no ferries in winter").wait_for()
    boxes = [await card.nth(place).bounding_box() for place in range(3)]
    assert len({box["y"] for box in boxes if box}) == 1, "they stand side by side"
    assert await ada.page.locator(".thinking").get_attribute("open") is None
    harbour.open.set()
    await ada.sees_end()
    assert await card.first.locator(".time").inner_text() != ""
    await ada.sees_what_is_stored(api)


async def test_a_reload_in_the_middle_of_a_word_loses_and_repeats_nothing(
    people: SitDown, site: Server, api: Client
) -> None:
    pause = Pause()
    chat = await use(api, site.scripts.model(paused(pause, "The tide is hi", "gh at four, and low at ten.")))
    ada = await people(site.url, chat)
    await ada.say("When?")
    await ada.sees("The tide is hi")
    await ada.reload()
    await ada.sees("The tide is hi")
    pause.go.set()
    await ada.sees_end()
    await ada.sees_what_is_stored(api)


async def test_blocks_of_a_reset_leave_the_page(people: SitDown, site: Server, api: Client) -> None:
    pause = Pause()
    cut: list[Step] = [
        *list(message_of(text("Words that are lost.")))[:3],
        pause,
        TransientError("overloaded", "Try again."),
    ]
    model = site.scripts.model(cut, message_of(text("The answer.")))
    chat = await use(api, model, limits={"recovery": "retry"})
    ada = await people(site.url, chat)
    await ada.say("When?")
    await ada.sees("Words that are lost.")
    pause.go.set()
    await ada.sees_end()
    await ada.sees_what_is_stored(api)
    assert await ada.page.get_by_text("Words that are lost.").count() == 0


@pytest.mark.full
async def test_a_cut_text_and_its_continuation_read_as_one(people: SitDown, site: Server, api: Client) -> None:
    cut: list[Step] = [*list(message_of(text("The tide is hi")))[:3], TransientError("overloaded", "Try again.")]
    chat = await use(api, site.scripts.model(cut, message_of(text("The tide is ", "high at *noon*."))))
    ada = await people(site.url, chat)
    await ada.say("When?")
    await ada.sees("The tide is high at noon.")
    await ada.sees_end()
    await ada.sees("The answer was interrupted and continued (about 4 tokens before that).")


async def test_an_answer_finishes_after_the_page_was_closed(people: SitDown, site: Server, api: Client) -> None:
    pause = Pause()
    chat = await use(api, site.scripts.model(paused(pause, "First. ", "Second.")))
    ada = await people(site.url, chat)
    await ada.say("Go on without me")
    await ada.sees("First.")
    await ada.page.close()
    pause.go.set()
    again = await new_tab(ada.context, f"{site.url}/#{chat}")
    await again.sees_end()
    await again.sees_what_is_stored(api)
    assert again.troubles() == []


async def test_two_tabs_show_one_answer_and_follow_turns_of_each_other(
    people: SitDown, site: Server, api: Client
) -> None:
    pause = Pause()
    chat = await use(api, site.scripts.model(paused(pause, "One ", "two."), message_of(text("Three."))))
    ada = await people(site.url, chat)
    other = await new_tab(ada.context, f"{site.url}/#{chat}")
    await ada.say("Count")
    await other.sees("One")
    pause.go.set()
    for tab in (ada, other):
        await tab.sees_end()
        await tab.sees_what_is_stored(api)
    await other.say("Go on")
    await ada.page.bring_to_front()  # browsers delay drawing in background tabs
    await ada.sees("Three.")
    await ada.sees_end()
    await ada.sees_what_is_stored(api)
    assert other.troubles() == []


async def test_stop_keeps_the_text_so_far(people: SitDown, site: Server, api: Client) -> None:
    pause = Pause()
    chat = await use(api, site.scripts.model(paused(pause, "I begin ", "and never end.")))
    ada = await people(site.url, chat)
    await ada.say("Talk")
    await ada.sees("I begin")
    await ada.press("Stop")
    await ada.sees_end("cancelled")
    await ada.sees("Stopped.")
    (_, answer) = await ada.sees_what_is_stored(api)
    assert [block["text"] for block in answer["blocks"]] == ["I begin "]


async def test_editing_and_asking_again_make_siblings_that_arrows_lead_to(
    people: SitDown, site: Server, api: Client
) -> None:
    replies = [message_of(text(words)) for words in ("First answer.", "Second answer.", "Answer to the edit.")]
    chat = await use(api, site.scripts.model(*replies))
    ada = await people(site.url, chat)
    await ada.say("A question")
    await ada.sees_end()
    await ada.press("Answer again")
    await ada.sees("Second answer.")
    await ada.sees_end()
    await ada.sees_what_is_stored(api)
    await ada.last.get_by_text("2 / 2").wait_for()
    await ada.press("Edit")
    await ada.page.get_by_role("textbox", name="Edit what you said").fill("Another question")
    await ada.page.keyboard.press("Enter")
    await ada.sees("Answer to the edit.")
    await ada.sees_end()
    await ada.sees_what_is_stored(api)
    await ada.press("Previous question")
    await ada.sees("Second answer.")
    await ada.press("Previous answer")
    await ada.sees("First answer.")
    await ada.press("Next question", ada.page.locator(".turn.user"))
    await ada.sees("Answer to the edit.")
    await ada.sees_what_is_stored(api)


async def test_a_message_during_an_answer_steers_it_or_is_enqueued(
    people: SitDown, site: Server, api: Client, harbour: Harbour
) -> None:
    chat = await use(
        api, site.scripts.model(three_calls(), message_of(text("With bikes, then.")), message_of(text("Next.")))
    )
    ada = await people(site.url, chat)
    await ada.say("When can we cross?")
    await ada.page.locator(".card[data-state=running]").first.wait_for()
    await ada.say("We have bikes")
    await ada.page.locator(".pending-steers").get_by_text("We have bikes").wait_for()
    await ada.page.get_by_text("Ask next").click()
    await ada.say("And then?")
    await ada.sees("Waiting for its turn")
    harbour.open.set()
    await ada.sees("With bikes, then.")
    await ada.sees("Next.")
    await ada.sees_end()
    turns = await ada.sees_what_is_stored(api)
    assert await ada.page.locator(".pending-steers .user-text").count() == 0
    assert "user_text" in [block["type"] for block in turns[1]["blocks"]]
    assert len(turns) == 4


async def test_a_message_that_was_refused_says_why_and_can_be_changed(
    people: SitDown, site: Server, database_url: str
) -> None:
    words = "Are you there? " * 100
    async with serving(database_url, max_body_bytes=1000) as strict:
        ada = await people(strict.url)
        ada.expects("413", "ERR_CONNECTION_REFUSED")  # the server exits before the browser
        await ada.say(words)
        await ada.page.get_by_text("Not sent. The body must have at most 1,000 bytes").wait_for()
        await ada.press("Edit", ada.page.locator("#unsent"))
        assert await ada.page.input_value("#words") == words.strip()
        await ada.say("Are you there?")
        await ada.sees_end()


@pytest.mark.full
async def test_a_chat_that_is_deleted_elsewhere_is_closed(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url)
    await ada.say("Hello")
    await ada.sees_end()
    await api.json("DELETE", f"/api/chats/{ada.chat}")
    await ada.page.get_by_text("What would you like to know?").wait_for()
    assert ada.chat == ""


@pytest.mark.full
async def test_chats_are_searched_renamed_and_deleted_from_the_list(people: SitDown, site: Server, api: Client) -> None:
    for title in ("Sailing", "Cooking", "Gardening"):
        await use(api, "plain", title)
    ada = await people(site.url)
    links = ada.page.locator("#chats a")
    assert await links.all_inner_texts() == ["Gardening", "Cooking", "Sailing"]
    await ada.page.fill("#search", "cook")
    await expect(links).to_have_count(1)
    await links.hover()
    await ada.press("Rename Cooking")
    await ada.page.keyboard.type("Cooking fish")
    await ada.page.keyboard.press("Enter")
    await ada.page.get_by_role("link", name="Cooking fish").wait_for()
    await links.hover()
    await ada.press("Delete Cooking fish")
    await ada.press("Delete")
    await ada.page.get_by_text("No chats.").wait_for()
    assert [chat["title"] for chat in (await api.json("GET", "/api/chats"))["chats"]] == ["Gardening", "Sailing"]
