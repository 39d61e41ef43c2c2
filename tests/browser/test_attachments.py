"""Files of a message: attached, shown, rejected, and sent again."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.browser.conftest import SitDown
from tests.browser.person import Person
from tests.browser.scenes import one_call
from tests.browser.test_budgets import violations
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server
from tests.support.pictures import PIXEL
from turnstream.llm.models.catalog import Model, ProviderModels
from turnstream.scripted import ScriptedProvider, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Simulates a paste or a drop of files: `[name, type, base64]`.
_BRING = """([name, target, files]) => {
  const transfer = new DataTransfer()
  for (const [name, type, data] of files)
    transfer.items.add(new File([Uint8Array.from(atob(data), (sign) => sign.charCodeAt(0))], name, { type }))
  const event = new Event(name, { bubbles: true, cancelable: true })
  event[name === 'paste' ? 'clipboardData' : 'dataTransfer'] = transfer // Firefox gives a ClipboardEvent no files
  document.querySelector(target).dispatchEvent(event)
}"""

# The first script checks how many files the browser has stored; the second script deletes them.
_KEPT = """(count) => new Promise((resolve) => {
  indexedDB.open('turnstream').onsuccess = ({ target }) => {
    const counted = target.result.transaction('files').objectStore('files').count()
    counted.onsuccess = () => resolve(counted.result === count)
  }
})"""
_FORGET = """() => new Promise((resolve) => {
  indexedDB.open('turnstream').onsuccess = ({ target }) => {
    const transaction = target.result.transaction('files', 'readwrite')
    transaction.objectStore('files').clear()
    transaction.oncomplete = resolve
  }
})"""


async def bring(ada: Person, event: str, target: str, *files: tuple[str, str, bytes]) -> None:
    encoded = [(name, type, base64.b64encode(content).decode()) for name, type, content in files]
    await ada.page.evaluate(_BRING, [event, target, encoded])


async def said_last(api: Client, chat: str) -> list[dict[str, Any]]:
    turns = (await api.json("GET", f"/api/chats/{chat}/turns"))["turns"]
    blocks: list[dict[str, Any]] = turns[-2]["blocks"]
    return blocks


async def test_files_are_pasted_dropped_or_chosen_seen_sent_and_kept_in_an_edit(
    people: SitDown, site: Server, api: Client, tmp_path: Path
) -> None:
    (tmp_path / "tide.txt").write_text("High at four.")
    ada = await people(site.url)
    page, chips = ada.page, ada.page.locator("#attached .chip[data-state=ready]")
    await bring(ada, "paste", "#words", ("gauge.png", "image/png", PIXEL))
    await bring(ada, "drop", "#transcript", ("chart.pdf", "application/pdf", b"%PDF-1.4 chart"))
    await page.set_input_files("#pick-attachments", tmp_path / "tide.txt")
    await expect(chips).to_have_count(3)
    assert await violations(ada) == []
    await ada.press("Do not attach chart.pdf")
    await expect(page.locator("#words")).to_be_focused()
    await ada.say("What do you see?")
    await ada.sees_end()
    await expect(page.locator("#attached .chip")).to_have_count(0)
    chat = ada.chat
    picture, paper, words = await said_last(api, chat)
    assert (picture["type"], words["text"]) == ("image", "What do you see?")
    assert (paper["type"], paper["data"]["title"]) == ("document", "tide.txt")
    for _ in range(2):  # before and after a reload
        image = page.locator(".turn.user .file-button.image img")
        await image.wait_for()
        assert await image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 1
        assert str(await image.get_attribute("src")).startswith("blob:")
        await ada.reload()
    assert await violations(ada) == []
    await page.get_by_role("button", name="Image", exact=True).click()
    await page.get_by_role("dialog", name="Image").get_by_role("img").wait_for()
    await page.keyboard.press("Escape")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="tide.txt").click()
    assert (await (await download.value).path()).read_text() == "High at four."
    await ada.press("Edit")
    await page.get_by_role("textbox", name="Edit what you said").fill("And now?")
    await page.keyboard.press("Enter")
    await ada.sees("And now?")
    await ada.sees_end()
    assert [block["text"] for block in await said_last(api, chat)] == ["", "", "And now?"]


async def test_a_refused_file_is_reported_in_the_servers_words_and_an_accepted_one_stays(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(site.url)
    ada.expects("415")
    await bring(ada, "drop", "#transcript", ("a.zip", "application/zip", b"PK\xff\xfe"), ("gauge.png", "", PIXEL))
    await ada.page.get_by_text("a.zip: The body must be a file of one of these types").wait_for()
    await expect(ada.page.locator("#attached .chip")).to_have_count(1)
    await ada.page.focus("#words")
    await ada.page.keyboard.press("Enter")
    await ada.sees_end()
    assert [block["type"] for block in await said_last(api, ada.chat)] == ["image"]


async def hold_uploads(page: Page) -> asyncio.Event:
    """Delays uploads until the test sets the returned event."""
    go = asyncio.Event()

    async def wait(route: Route) -> None:
        await go.wait()
        await route.continue_()

    await page.route("**/api/uploads", wait)
    return go


async def test_a_file_removed_during_its_upload_is_neither_sent_nor_kept_and_an_added_one_goes_next(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(site.url)
    go = await hold_uploads(ada.page)
    await bring(ada, "paste", "#words", ("a.txt", "text/plain", b"of a"), ("b.txt", "text/plain", b"of b"))
    await ada.say("Look")
    await ada.press("Do not attach a.txt")
    await bring(ada, "paste", "#words", ("c.txt", "text/plain", b"of c"))
    async with ada.page.expect_response(lambda answer: answer.request.method == "DELETE") as deleted:
        go.set()
    assert (await deleted.value).status == 200
    await ada.sees_end()
    assert [block["data"]["title"] for block in (await said_last(api, ada.chat))[:-1]] == ["b.txt"]
    await expect(ada.page.locator("#attached .chip")).to_have_text(["c.txt"])


async def test_a_message_that_waits_for_its_files_goes_to_the_chat_in_which_it_was_written(
    people: SitDown, site: Server, api: Client
) -> None:
    chats = [await use(api, "plain", title) for title in ("One", "Two")]
    ada = await people(f"{site.url}/#{chats[0]}")
    go = await hold_uploads(ada.page)
    words, chips = ada.page.locator("#words"), ada.page.locator("#attached .chip")
    await bring(ada, "paste", "#words", ("a.txt", "text/plain", b"of a"))
    await ada.say("Look")
    await ada.page.locator("#unsent", has_text="Waiting for its files").wait_for()
    await words.fill("and this")
    await bring(ada, "paste", "#words", ("b.txt", "text/plain", b"of b"))
    await ada.page.get_by_role("link", name="Two").click()
    await expect(words).to_have_value("")
    await expect(chips).to_have_count(0)
    go.set()
    await ada.page.get_by_role("link", name="One").click()
    await ada.sees_end()
    await expect(words).to_have_value("and this")
    await expect(chips).to_have_text(["b.txt"])
    paper, look = await said_last(api, chats[0])
    assert (paper["data"]["title"], look["text"]) == ("a.txt", "Look")
    assert (await api.json("GET", f"/api/chats/{chats[1]}/turns"))["turns"] == []


async def test_files_of_a_draft_and_of_an_unsent_message_survive_a_reload(
    people: SitDown, site: Server, api: Client, tmp_path: Path
) -> None:
    (tmp_path / "chart.txt").write_text("A chart.")
    chats = [await use(api, "plain", title) for title in ("One", "Two")]
    ada = await people(site.url, chats[0])
    go = await hold_uploads(ada.page)
    await ada.page.set_input_files("#pick-attachments", tmp_path / "chart.txt")
    await ada.say("Look")
    await ada.page.locator("#unsent", has_text="Waiting for its files").wait_for()
    await bring(ada, "paste", "#words", ("a.txt", "text/plain", b"of a"), ("b.txt", "text/plain", b"of b"))
    await ada.page.wait_for_function(_KEPT, arg=3)
    await ada.reload()
    chips = ada.page.locator("#attached .chip")
    await expect(chips).to_have_text(["a.txt", "b.txt"])
    unsent = ada.page.locator("#unsent")
    await expect(unsent.get_by_role("button", name="Do not attach chart.txt")).to_be_visible()
    go.set()
    await ada.sees_end()
    paper, look = await said_last(api, chats[0])
    assert (paper["data"]["title"], look["text"]) == ("chart.txt", "Look")
    await ada.page.get_by_role("link", name="Two").click()
    await expect(chips).to_have_count(0)
    await ada.open(chats[0])
    await ada.press("Do not attach a.txt")
    await ada.page.wait_for_function(_KEPT, arg=1)
    await ada.reload()
    await expect(chips).to_have_text(["b.txt"])
    await ada.say("And this")
    await ada.sees("And this")
    await ada.page.wait_for_function(_KEPT, arg=0)


@pytest.mark.full
async def test_a_draft_and_its_files_follow_the_token_that_is_asked_for_meanwhile(
    people: SitDown, site: Server
) -> None:
    ada = await people(site.url)
    ada.expects("401")
    words, chips = ada.page.locator("#words"), ada.page.locator("#attached .chip[data-state=ready]")
    await words.fill("Look")
    await bring(ada, "paste", "#words", ("a.txt", "text/plain", b"of a"))
    await expect(chips).to_have_text(["a.txt"])
    token = await site.token("ada")
    await ada.page.reload()
    await ada.page.get_by_label("Token", exact=True).fill(token)
    await ada.page.get_by_label("Keep it in this browser").check()
    await ada.press("Go on")
    for _ in range(2):  # the files are checked at once, and after a reload with the stored token
        await ada.ready()
        await expect(words).to_have_value("Look")
        await expect(chips).to_have_text(["a.txt"])
        await ada.page.reload()


async def test_a_file_that_was_not_uploaded_before_a_reload_is_reported_and_left_out_if_wanted(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(site.url)
    await hold_uploads(ada.page)
    await bring(ada, "paste", "#words", ("a.txt", "text/plain", b"of a"))
    await ada.say("Look")
    await ada.page.locator("#unsent", has_text="Waiting for its files").wait_for()
    await ada.page.evaluate(_FORGET)
    await ada.reload()
    await ada.page.get_by_text("Not sent. Not uploaded before the page was closed: a.txt").wait_for()
    assert await violations(ada) == []
    await ada.press("Send without it")
    await ada.sees_end()
    assert [block["text"] for block in await said_last(api, ada.chat)] == ["Look"]


async def test_a_picture_that_cannot_be_read_is_asked_for_again_and_one_that_is_gone_is_not(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(site.url)
    ada.expects("404", "Failed to load resource")
    await bring(ada, "paste", "#words", ("gauge.png", "image/png", PIXEL))
    await ada.say("Look")
    await ada.sees_end()
    await ada.page.route("**/api/uploads/*", lambda route: route.abort())
    await ada.reload()
    again = ada.page.get_by_role("button", name="The image could not be read. Press to try again")
    await again.wait_for()
    await ada.page.unroute("**/api/uploads/*")
    await again.click()
    await ada.page.get_by_role("button", name="Image", exact=True).locator("img").wait_for()
    picture, _ = await said_last(api, ada.chat)
    await api.json("DELETE", f"/api/uploads/{picture['data']['source']['id']}")
    await ada.reload()
    await expect(ada.page.get_by_role("button", name="The image is gone")).to_be_disabled()


async def test_only_kinds_of_files_that_the_model_can_read_are_offered(
    people: SitDown, site: Server, api: Client
) -> None:
    able = {"reads": {"documents"}, "sees": {"images"}, "neither": {"tools"}}
    models = [Model(id, can=frozenset(can)) for id, can in able.items()]
    site.scripts.offers.append(ProviderModels(ScriptedProvider(lambda _: message_of(text("Yes."))), models))
    ada = await people(site.url)
    button, picker = ada.page.locator("#attach"), ada.page.locator("#pick-attachments")
    await ada.open(await use(api, "reads"))
    await expect(picker).to_have_attribute("accept", "application/pdf,text/*,application/json")
    await bring(ada, "paste", "#words", ("gauge.png", "image/png", PIXEL))
    await ada.page.get_by_text("gauge.png: the model of this chat takes no images").wait_for()
    await ada.open(await use(api, "sees"))
    await expect(picker).to_have_attribute("accept", "image/png,image/jpeg,image/gif,image/webp")
    await ada.open(await use(api, "neither"))
    await expect(button).to_be_hidden()
    await bring(ada, "drop", "#transcript", ("tide.txt", "text/plain", b"High at four."))
    await ada.page.get_by_text("1 document added.").wait_for()


async def test_a_folder_that_is_dropped_becomes_documents(
    people: SitDown, site: Server, api: Client, tmp_path: Path
) -> None:
    (tmp_path / "course" / "week 1").mkdir(parents=True)
    (tmp_path / "course" / "week 1" / "tides.md").write_text("Why there are tides.")
    ada = await people(site.url)
    hand = await ada.context.new_cdp_session(ada.page)
    data = {"items": [], "files": [str(tmp_path / "course")], "dragOperationsMask": 1}
    for type in ("dragEnter", "dragOver", "drop"):
        await hand.send("Input.dispatchDragEvent", {"type": type, "x": 600, "y": 300, "data": data})
    await ada.page.get_by_text("1 document added.").wait_for()
    stored = await api.json("GET", "/api/documents")
    assert [one["path"] for one in stored["documents"]] == ["course/week 1/tides.md"]


async def test_files_of_a_tool_are_shown_beneath_its_call_at_once_and_later(
    people: SitDown, site: Server, api: Client
) -> None:
    chat = await use(api, site.scripts.model(one_call("chart", {"port": "Cuxhaven"}), message_of(text("There."))))
    ada = await people(site.url, chat)
    card = ada.page.get_by_role("group", name="Tool chart")
    await ada.say("Show me the harbour")
    await ada.sees_end()
    for _ in range(2):
        image = card.locator(".file-button.image img")
        await image.wait_for()
        assert await image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 1
        await expect(card.get_by_role("button", name="Document")).to_be_visible()
        await ada.sees_what_is_stored(api)
        await ada.reload()
    assert await violations(ada) == []
    await card.get_by_role("button", name="Image", exact=True).click()
    await ada.page.get_by_role("dialog", name="Image").get_by_role("img").wait_for()
