"""Network failures: every message of a person is sent, and it is sent to the right chat."""

import re

import pytest
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.person import Person
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.full
async def test_a_chat_that_is_opened_without_a_network_is_there_when_it_is_back(
    people: SitDown, site: Server, api: Client
) -> None:
    first, other = await api.ask(await api.chat(title="First")), await api.ask(await api.chat(title="Other"))
    ada = await people(site.url, first.assistant["chat_id"])
    ada.expects("Failed to load resource", "ERR_INTERNET_DISCONNECTED")
    await ada.sees("Hello.")
    await ada.context.set_offline(True)
    await ada.page.get_by_role("link", name="Other").click()
    await ada.page.get_by_text("Reconnecting").wait_for()
    await ada.page.locator("#title", has_text="Other").wait_for()
    assert ada.chat == other.assistant["chat_id"]
    await ada.page.get_by_text("This chat cannot be read now").wait_for()
    assert await ada.page.locator("#welcome").is_hidden()
    await ada.page.get_by_role("link", name="First").click()
    await ada.sees("Hello.")  # the text comes from the browser's stored copy
    await ada.page.get_by_role("link", name="Other").click()
    await ada.page.get_by_text("This chat cannot be read now").wait_for()
    await ada.context.set_offline(False)
    await ada.sees("Hello.")
    assert await ada.page.locator("#unread").is_hidden()
    await ada.page.get_by_text("Reconnecting").wait_for(state="hidden")
    await ada.say("And now?")
    await ada.sees("And now?")
    await ada.sees_end()
    assert ada.chat == other.assistant["chat_id"]
    assert len(await ada.sees_what_is_stored(api)) == 4


async def test_a_reload_without_a_network_shows_the_page_and_its_stored_content(
    people: SitDown, site: Server, api: Client
) -> None:
    first, other = await api.ask(await api.chat(title="First")), await api.ask(await api.chat(title="Other"))
    ada = await people(site.url, first.assistant["chat_id"], service_workers="allow")
    ada.expects("Failed to load resource", "ERR_INTERNET_DISCONNECTED")
    await ada.sees("Hello.")
    await ada.page.wait_for_function(f"async () => (await ({_KEPT})()).length === 2")  # the list of chats, and a path
    kept = await ada.page.evaluate(
        """async () => {
          await navigator.serviceWorker.ready
          const [name] = await caches.keys()
          return (await (await caches.open(name)).keys()).map(({ url }) => new URL(url).pathname)
        }"""
    )
    assert {name.split("/")[1] for name in kept} == {"static"}  # the browser stores no data of an owner
    assert not [name for name in kept if "admin" in name or "shared.html" in name]
    await ada.context.set_offline(True)
    await ada.page.reload()
    await ada.sees("Hello.")
    await ada.page.locator("#title", has_text="First").wait_for()
    await ada.page.get_by_text("Reconnecting").wait_for()
    await ada.page.get_by_role("link", name="Other").click()
    await ada.page.get_by_text("This chat cannot be read now").wait_for()
    await ada.context.set_offline(False)
    await ada.ready()
    assert ada.chat == other.assistant["chat_id"]
    await ada.say("And now?")
    await ada.sees("And now?")
    await ada.sees_end()


@pytest.mark.full
async def test_a_new_chat_has_neither_title_nor_marks_of_the_one_before(
    people: SitDown, site: Server, api: Client
) -> None:
    turn, _ = await api.ask(await api.chat(title="First")), await api.chat(title="Other")
    ada = await people(site.url, turn.assistant["chat_id"])
    ada.expects("Failed to load resource", "ERR_INTERNET_DISCONNECTED")
    await ada.page.locator("#title", has_text="First").wait_for()
    await ada.context.set_offline(True)
    await ada.page.get_by_role("link", name="Other").click()
    await ada.page.get_by_text("Reconnecting").wait_for()
    await ada.page.click("#new-chat")
    await ada.page.locator("#title", has_text="New chat").wait_for()
    await ada.page.get_by_text("Reconnecting").wait_for(state="hidden")
    assert await ada.page.title() == "turnstream"
    assert await ada.page.locator("[data-export]").first.is_disabled()
    assert await ada.page.locator("#chats [aria-current]").count() == 0
    await ada.context.set_offline(False)


async def copies(person: Person) -> list[str]:
    """Returns the browser's copies of chats."""
    names: list[str] = await person.page.evaluate(_KEPT)
    return [name for name in names if name.startswith("path ")]


async def until_forgotten(person: Person, chat: str) -> None:
    await person.page.wait_for_function(f"async (name) => !(await ({_KEPT})()).includes(name)", arg=f"path {chat}")


_KEPT = """() => new Promise((resolve) => {
  const opening = indexedDB.open('turnstream', 1)
  opening.onsuccess = () => {
    const names = opening.result.transaction('files').objectStore('files').getAllKeys()
    names.onsuccess = () => resolve(names.result)
  }
})"""


_REFUSE = """() => {
  const { fetch } = window
  window.fetch = async (url, options) => {
    if (!/\\/api\\/chats\\/[^/]+\\/stream$/.test(url)) return fetch(url, options)
    if (window.refused) {
      window.refused = false
      return Response.json({ detail: 'No cursor of it.' }, { status: 400 })
    }
    const ending = new AbortController()
    window.cut = () => ending.abort(new TypeError('cut'))
    return fetch(url, { ...options, signal: AbortSignal.any([options.signal, ending.signal]) })
  }
}"""


@pytest.mark.full
async def test_a_chat_with_a_refused_cursor_is_read_again(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url)
    await ada.page.evaluate(_REFUSE)
    await ada.say("One")
    await ada.sees_end()
    await api.ask(f"/api/chats/{ada.chat}", "Two")
    await ada.sees("Two")
    await ada.sees_end()
    await ada.page.evaluate("() => { window.refused = true; window.cut() }")
    await ada.page.wait_for_function("() => window.refused === false")
    await api.ask(f"/api/chats/{ada.chat}", "Three")
    await ada.sees("Three")
    await ada.sees_end()
    assert len(await ada.sees_what_is_stored(api)) == 6
    await expect(ada.page.locator("#connection")).to_be_empty()


async def _said(api: Client, chat: str) -> list[str]:
    turns = (await api.json("GET", f"/api/chats/{chat}/turns"))["turns"]
    return [turn["blocks"][0]["text"] for turn in turns if turn["role"] == "user"]


async def _go_offline(ada: Person) -> None:
    ada.expects("Failed to load resource", "ERR_INTERNET_DISCONNECTED")
    await ada.context.set_offline(True)


_LOSE = """(arrive) => {
  const { fetch } = window
  window.fetch = async (url, options) => {
    if (window.mended || options?.method !== 'POST' || !/\\/turns$/.test(url)) return fetch(url, options)
    if (arrive) await fetch(url, options)
    throw new TypeError('lost')
  }
}"""


async def _cut_posts(ada: Person, *, arrive: bool = False) -> None:
    """Breaks requests that send a message, even after a reload. The request is lost, or with `arrive` its response is
    lost.
    """
    await ada.page.evaluate(_LOSE, arrive)
    await ada.page.add_init_script(f"({_LOSE})({str(arrive).lower()})")


async def _mend_posts(ada: Person) -> None:
    await ada.page.evaluate("() => { window.mended = true; dispatchEvent(new Event('online')) }")


async def test_messages_without_a_network_are_shown_as_unsent_and_sent_in_order_later(
    people: SitDown, site: Server, api: Client
) -> None:
    turn, other = await api.ask(await api.chat(title="First")), await use(api, "plain", "Other")
    chat = turn.assistant["chat_id"]
    ada = await people(site.url, chat)
    await ada.sees("Hello.")
    await _go_offline(ada)
    unsent = ada.page.locator("#unsent .unsent")
    for words in ("One", "Two"):
        await ada.say(words)
    await expect(unsent).to_have_count(2)
    await unsent.get_by_text("Not sent yet. It goes when the server can be reached.").wait_for()
    await unsent.get_by_text("It waits for the message before it").wait_for()
    assert await ada.page.input_value("#words") == ""
    await ada.page.get_by_role("link", name="Other").click()
    await expect(unsent).to_have_count(0)
    await ada.say("Elsewhere")
    await expect(unsent).to_have_text(re.compile("Elsewhere"))
    await ada.context.set_offline(False)
    await ada.sees("Elsewhere")
    await ada.sees_end()
    await expect(unsent).to_have_count(0)
    await ada.page.get_by_role("link", name="First").click()
    await ada.sees("Two")
    await ada.sees_end()
    assert await _said(api, chat) == ["Hi", "One", "Two"]
    assert await _said(api, other) == ["Elsewhere"]


@pytest.mark.full
async def test_a_new_chat_begins_with_the_messages_sent_offline_also_after_a_reload(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(site.url)
    await _cut_posts(ada)
    await ada.say("One")
    await ada.say("Two")
    await ada.page.fill("#words", "Three, not sen")
    await ada.reload()
    await expect(ada.page.locator("#unsent .unsent")).to_have_count(2)
    await expect(ada.page.locator("#words")).to_have_value("Three, not sen")
    assert (await api.json("GET", "/api/chats"))["chats"] == []
    await _mend_posts(ada)
    await ada.sees("Two")
    await ada.sees_end()
    await expect(ada.page.locator("#unsent .unsent")).to_have_count(0)
    await expect(ada.page.locator("#words")).to_have_value("Three, not sen")
    assert await _said(api, ada.chat) == ["One", "Two"]
    assert len((await api.json("GET", "/api/chats"))["chats"]) == 1


async def test_a_message_whose_answer_was_lost_arrives_once_also_from_another_visit_or_tab(
    people: SitDown, site: Server, api: Client
) -> None:
    chat = await use(api, "plain")
    ada = await people(site.url, chat)
    await _cut_posts(ada, arrive=True)
    await ada.say("Once")
    await ada.page.get_by_text("It goes when the server can be reached").wait_for()
    await ada.page.close()
    again = Person(await ada.context.new_page(), ada.context)
    await again.page.goto(f"{site.url}/#{chat}")
    await again.sees("Once")
    await again.sees_end()
    await expect(again.page.locator("#unsent .unsent")).to_have_count(0)
    assert await _said(api, chat) == ["Once"]
    assert len(await again.sees_what_is_stored(api)) == 2


@pytest.mark.full
async def test_an_unsent_message_is_taken_back_and_drafts_are_kept_for_each_chat(
    people: SitDown, site: Server, api: Client
) -> None:
    chats = {title: await use(api, "plain", title) for title in ("One", "Two")}
    ada = await people(site.url, chats["One"])
    words = ada.page.locator("#words")
    await _cut_posts(ada)
    await ada.say("Draft of one")
    await ada.press("Edit", ada.page.locator("#unsent"))
    await expect(words).to_have_value("Draft of one")
    await ada.page.get_by_role("link", name="Two").click()
    await expect(words).to_have_value("")
    await words.fill("Draft of two")
    await ada.page.click("#new-chat")
    await expect(words).to_have_value("")
    await ada.open(chats["Two"])
    await expect(words).to_have_value("Draft of two")
    await ada.page.get_by_role("link", name="One").click()
    await expect(words).to_have_value("Draft of one")
    await _mend_posts(ada)
    await words.press("Enter")
    await ada.sees_end()
    await ada.reload()
    await expect(words).to_have_value("")
    assert await _said(api, chats["One"]) == ["Draft of one"]
