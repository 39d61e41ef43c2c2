"""The list of queued messages below the composer."""

from typing import Any

import pytest
from playwright.async_api import Locator, expect

from tests.browser.conftest import SitDown
from tests.browser.person import Person
from tests.browser.test_talk import use
from tests.extensions.queue.test_queue import words_to
from tests.support.http_client import Client
from tests.support.http_server import Server, pausing
from turnstream.scripted import Pause, ScriptedProvider, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def waiting_line(
    people: SitDown, site: Server, api: Client, *words: str
) -> tuple[Person, Pause, ScriptedProvider, str]:
    """Returns a person with an answer that runs until the pause ends, and with queued messages."""
    pause = Pause()
    replies = [list(message_of(text("Yes."))) for _ in range(8)]
    model, provider = site.scripts.provider(pausing(pause, "One ", "two."), *replies)
    chat = await use(api, model, title="Ferries")
    ada = await people(site.url, chat)
    await ada.say("First")
    await pause.reached.wait()
    await ada.sees("One")
    await ada.page.get_by_text("Ask next").click()
    for place, each in enumerate(words, 1):
        await ada.say(each)
        await expect(entries(ada)).to_have_count(place)
    return ada, pause, provider, chat


def entries(person: Person) -> Locator:
    return person.page.locator("#queue li")


async def shows(person: Person, *words: str) -> None:
    await expect(person.page.locator("#queue bdi")).to_have_text(list(words))


def entry(person: Person, words: str) -> Locator:
    return entries(person).filter(has_text=words)


async def ends(person: Person, pause: Pause, api: Client) -> list[dict[str, Any]]:
    pause.go.set()
    await expect(entries(person)).to_have_count(0)
    await person.sees_end()
    return await person.sees_what_is_stored(api)


async def test_messages_that_wait_are_edited_moved_sent_now_and_withdrawn(
    people: SitDown, site: Server, api: Client
) -> None:
    ada, pause, provider, _ = await waiting_line(people, site, api, "Second", "Third", "Fourth", "Fifth")
    await ada.press("Move up (Alt + ↑)", entry(ada, "Third"))
    await shows(ada, "Third", "Second", "Fourth", "Fifth")
    await ada.press("Withdraw the message (Delete)", entry(ada, "Second"))
    await shows(ada, "Third", "Fourth", "Fifth")
    await ada.press("Edit the message", entry(ada, "Fourth"))
    await ada.page.get_by_label("Words of the message that waits").fill("Fourthly")
    await ada.page.keyboard.press("Enter")
    await shows(ada, "Third", "Fourthly", "Fifth")
    await ada.press("Send now, into this answer", entry(ada, "Fifth"))
    await shows(ada, "Fifth", "Third", "Fourthly")
    await ada.page.locator(".pending-steers").get_by_text("Fifth").wait_for()
    await ends(ada, pause, api)
    assert words_to(provider.requests[-1]) == ["First", "Fifth", "Third", "Fourthly"]


async def test_the_list_is_used_by_keys(people: SitDown, site: Server, api: Client) -> None:
    ada, pause, provider, _ = await waiting_line(people, site, api, "Second", "Third", "Fourth")
    await entry(ada, "Fourth").get_by_role("button").first.focus()
    await ada.page.keyboard.press("Alt+ArrowUp")
    await shows(ada, "Second", "Fourth", "Third")
    await ada.page.keyboard.press("Alt+ArrowUp")
    await shows(ada, "Fourth", "Second", "Third")
    await entry(ada, "Second").get_by_role("button").first.focus()
    await ada.page.keyboard.press("Delete")
    await shows(ada, "Fourth", "Third")
    await ends(ada, pause, api)
    assert words_to(provider.requests[-1]) == ["First", "Fourth", "Third"]


async def test_a_change_in_one_tab_appears_in_another_one(people: SitDown, site: Server, api: Client) -> None:
    ada, pause, provider, chat = await waiting_line(people, site, api, "Second", "Third")
    bob = await people(site.url, chat)
    await shows(bob, "Second", "Third")
    await bob.page.get_by_text("Steer this answer").click()
    await bob.say("Briefly")
    for person in (ada, bob):
        await shows(person, "Briefly", "Second", "Third")
    await ada.press("Ask next, after this answer", entry(ada, "Briefly"))
    await bob.press("Withdraw the message (Delete)", entry(bob, "Third"))
    for person in (ada, bob):
        await shows(person, "Briefly", "Second")
    await ends(ada, pause, api)
    await bob.sees_end()
    await bob.sees_what_is_stored(api)
    assert words_to(provider.requests[-1]) == ["First", "Briefly", "Second"]


async def test_words_that_come_too_late_are_put_back_into_the_composer(
    people: SitDown, site: Server, api: Client
) -> None:
    ada, pause, provider, _ = await waiting_line(people, site, api, "Second")
    ada.expects("409")
    await ada.press("Edit the message", entry(ada, "Second"))
    words = ada.page.get_by_label("Words of the message that waits")
    await words.fill("Better")
    pause.go.set()
    await ada.sees_end()
    await words.press("Enter")
    await expect(ada.page.locator("#words")).to_have_value("Better")
    await expect(ada.page.locator("#trouble")).to_contain_text("was delivered to turn")
    await expect(ada.page.locator("#queue")).to_be_hidden()
    assert words_to(provider.requests[-1]) == ["First", "Second"]
