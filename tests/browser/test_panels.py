"""The panels of the page: documents, settings, the timeline, exports, keys."""

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.scenes import Harbour, paused, three_calls
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.model_apis import parameters_of
from turnstream.extension import installed
from turnstream.extensions.demo import EXTENSION as DEMO
from turnstream.llm.models.catalog import ProviderModels
from turnstream.scripted import Pause, ScriptedProvider, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_documents_are_added_shown_as_a_tree_and_removed(
    people: SitDown, site: Server, api: Client, tmp_path: Path
) -> None:
    (tmp_path / "course" / "week 1").mkdir(parents=True)
    (tmp_path / "course" / "overview.md").write_text("All of it.")
    (tmp_path / "course" / "week 1" / "tides & moon.md").write_text("Why there are tides.")
    (tmp_path / "picture.bin").write_bytes(b"\xff\xfe\x00")
    ada = await people(site.url)
    ada.expects("415")
    await ada.press("Documents")
    await ada.page.set_input_files("#pick-folder", tmp_path / "course")
    await ada.page.get_by_text("2 documents added.").wait_for()
    await ada.page.set_input_files("#pick-files", tmp_path / "picture.bin")
    await ada.page.get_by_text("picture.bin: The body must be UTF-8 text").wait_for()
    await ada.page.locator("#tree summary", has_text="course").click()
    await ada.page.locator("#tree summary", has_text="week 1").click()
    await ada.page.get_by_text("tides & moon.md").wait_for()
    stored = await api.json("GET", "/api/documents")
    assert [one["path"] for one in stored["documents"]] == ["course/overview.md", "course/week 1/tides & moon.md"]
    await ada.press("Remove course/week 1/tides & moon.md")
    await ada.press("Remove")
    await ada.page.locator('[data-path="course/week 1/tides & moon.md"]').wait_for(state="detached")
    stored = await api.json("GET", "/api/documents")
    assert [one["path"] for one in stored["documents"]] == ["course/overview.md"]


@pytest.mark.full
async def test_files_dropped_while_the_documents_are_open_become_documents(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(site.url)
    await ada.press("Documents")
    await ada.page.evaluate(
        """() => {
          const transfer = new DataTransfer()
          transfer.items.add(new File(['High at four.'], 'tide.txt', { type: 'text/plain' }))
          const dropped = { bubbles: true, cancelable: true, dataTransfer: transfer }
          document.body.dispatchEvent(new DragEvent('drop', dropped))
        }"""
    )
    await ada.page.get_by_text("1 document added.").wait_for()
    assert (await api.get("/api/documents/tide.txt")).text == "High at four."


async def test_settings_are_kept_with_the_chat(people: SitDown, site: Server, api: Client) -> None:
    model, provider = site.scripts.provider(message_of(text("Yes.")))
    ada = await people(site.url, await use(api, "plain"))
    await ada.press("Model and settings")
    await ada.page.get_by_label("Model", exact=True).fill("no such model")
    ada.expects("422")
    await ada.press("Save")
    await ada.page.get_by_text("must be one of").wait_for()
    await ada.page.get_by_label("Model", exact=True).fill(model)
    await ada.page.get_by_label("System prompt").fill("Be brief.")
    await ada.page.get_by_label("Longest answer").fill("77")
    await ada.page.get_by_label("weather").uncheck()
    await ada.press("Save")
    await ada.page.locator("#settings").wait_for(state="hidden")
    await ada.say("Well?")
    await ada.sees_end()
    (asked,) = provider.requests
    assert (asked.system, asked.params) == ("Be brief.", {"max_tokens": 77})
    names = ["tide_table", "ferries", "logbook", "chart", "book_berth", "register", "confirm", "geolocation"]
    assert [tool.name for tool in asked.tools] == names


@pytest.mark.full
async def test_the_parameters_of_the_model_have_controls(people: SitDown, site: Server, api: Client) -> None:
    provider = ScriptedProvider([message_of(text("Yes.")), message_of(text("No longer."))])
    local, claude = parameters_of("openai-chat", "compatible"), parameters_of("anthropic")
    site.scripts.offers.append(ProviderModels(provider, ["a-local-model"], (), local))
    site.scripts.offers.append(ProviderModels(provider, ["claude-opus-4-8"], (), claude))
    settings = {"model": "a-local-model", "params": {"top_k": 40, "stop_sequences": ["END"]}}
    chat = (await api.json("POST", "/api/chats", 201, json={"settings": settings}))["id"]
    ada = await people(site.url, chat)
    await ada.press("Model and settings")
    assert await ada.page.get_by_label("Top k").input_value() == "40"
    assert json.loads(await ada.page.get_by_label("Further parameters").input_value()) == {"stop_sequences": ["END"]}
    await ada.page.get_by_label("Temperature").fill("3")
    await ada.press("Save")
    assert await ada.page.get_by_label("Temperature").evaluate("input => input.validity.rangeOverflow")
    await ada.page.get_by_label("Temperature").fill("0.2")
    await ada.page.get_by_label("Reasoning effort").select_option("low")
    await ada.page.get_by_label("Top k").fill("")
    await ada.press("Save")
    await ada.page.locator("#settings").wait_for(state="hidden")
    kept = {"temperature": 0.2, "reasoning_effort": "low", "stop_sequences": ["END"]}
    assert (await api.json("GET", f"/api/chats/{chat}"))["settings"]["params"] == kept
    await ada.say("Well?")
    await ada.sees_end()
    assert provider.requests[-1].params == kept

    await ada.press("Model and settings")
    await ada.page.get_by_label("Model", exact=True).fill("claude-opus-4-8")
    await ada.page.get_by_label("Longest answer").fill("50")
    assert await ada.page.get_by_label("Temperature").count() == 0
    await ada.page.get_by_label("Effort", exact=True).select_option("high")
    await ada.page.get_by_label("Thinking", exact=True).select_option("adaptive")
    await ada.press("Save")
    await ada.page.locator("#settings").wait_for(state="hidden")
    await ada.say("And now?")
    await ada.sees("No longer.")
    assert provider.requests[-1].params == {
        "stop_sequences": ["END"],
        "max_tokens": 50,
        "output_config": {"effort": "high"},
        "thinking": {"type": "adaptive"},
    }
    assert not ada.troubles()


@pytest.mark.full
async def test_a_chat_that_is_older_than_those_in_the_list_has_its_title_and_its_model(
    people: SitDown, site: Server, api: Client
) -> None:
    chat = await use(api, site.scripts.model(message_of(text("Yes."))), "Long ago")
    ada = await people(site.url)
    await ada.page.route(
        re.compile(r"/api/chats\?"),
        lambda route: route.fulfill(json={"chats": [], "next": "before", "cursor": None}),
    )
    await ada.open(chat)
    await expect(ada.page.locator("#title")).to_have_text("Long ago")
    await expect(ada.page.locator("#model")).to_contain_text("script-")


@pytest.mark.full
async def test_the_timeline_shows_where_the_time_went(
    people: SitDown, site: Server, api: Client, harbour: Harbour
) -> None:
    harbour.open.set()
    usage = {"output_tokens": 214, "input_tokens": 1200, "cache_read_input_tokens": 8400}
    ada = await people(
        site.url, await use(api, site.scripts.model(three_calls(), message_of(text("Go."), usage=usage)))
    )
    await ada.say("When?")
    await ada.sees_end()
    await ada.press("Timeline")
    rows = ada.page.locator(".timeline tbody th")
    await rows.first.wait_for()
    names = [name for name in await rows.all_inner_texts() if name != "Queue"]
    assert names == ["Round 1", "tide_table", "weather", "ferries", "Round 2"]
    await ada.page.get_by_text("9,600 in (8,400 cached) · 214 out").wait_for()


@pytest.mark.full
@pytest.mark.parametrize("form", ["Markdown", "JSON"])
async def test_a_chat_can_be_taken_away(
    people: SitDown, site: Server, api: Client, harbour: Harbour, form: str, tmp_path: Path
) -> None:
    harbour.open.set()
    ada = await people(site.url)
    chat = await use(api, site.scripts.model(three_calls(), message_of(text("Go at noon."))), "To the island!")
    await ada.open(chat)
    await ada.say("When can we cross?")
    await ada.sees_end()
    await ada.page.get_by_label("Export").click()
    async with ada.page.expect_download() as download:
        await ada.press(f"As {form}")
    await (await download.value).save_as(tmp_path / "chat")
    exported = (tmp_path / "chat").read_text()
    if form == "JSON":
        assert json.loads(exported)["turns"] == (await api.json("GET", f"/api/chats/{chat}/turns"))["turns"]
    else:
        parts = ["# To the island!", "## You", "When can we cross?", "## Answer", "**weather**", "Go at noon."]
        assert sorted(parts, key=exported.index) == parts


async def test_everything_can_be_reached_by_keys(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url)
    page = ada.page
    await ada.say("First")
    await ada.sees_end()
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("End")
    await page.keyboard.type(" of all")
    await page.keyboard.press("Enter")
    await ada.sees("First of all")
    await ada.sees_end()
    await page.keyboard.press("Control+K")
    assert await page.evaluate("document.activeElement.id") == "search"
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.closest('[data-chat]') !== null")
    await page.keyboard.press("Control+Shift+O")
    await page.get_by_text("What would you like to know?").wait_for()
    assert await page.evaluate("document.activeElement.id") == "words"


@pytest.mark.full
async def test_the_list_of_chats_is_one_stop_of_the_tab_key_and_can_be_folded(
    people: SitDown, site: Server, api: Client
) -> None:
    for title in ("Third", "Second", "First"):
        await api.json("POST", "/api/chats", 201, json={"title": title})
    ada = await people(site.url)
    page, focused = ada.page, ada.page.locator(":focus")
    await page.focus("#search")
    for key, reached in (("Tab", "First"), ("ArrowDown", "Second"), ("ArrowDown", "Third"), ("ArrowUp", "Second")):
        await page.keyboard.press(key)
        await expect(focused).to_have_text(reached)
    for reached in ("Rename Second", "Delete Second", "Documents"):
        await page.keyboard.press("Tab")
        await expect(focused).to_have_accessible_name(reached)
    await ada.press("Chats")
    await expect(page.locator("#sidebar")).to_be_hidden()
    await ada.reload()
    await expect(page.locator("#sidebar")).to_be_hidden()
    await page.keyboard.press("Control+K")
    await expect(page.locator("#search")).to_be_focused()


@pytest.mark.full
async def test_a_message_has_its_time_and_one_button_stops_the_answer(
    people: SitDown, site: Server, api: Client
) -> None:
    pause = Pause()
    ada = await people(site.url, await use(api, site.scripts.model(paused(pause, "I begin ", "and end."))))
    await ada.say("When?")
    await ada.sees("I begin")
    await expect(ada.page.get_by_role("button", name=re.compile("Stop"))).to_have_count(1)
    await expect(ada.page.locator(".turn.user .figures")).to_have_text(re.compile(r"^\d+:\d\d"))
    await ada.page.get_by_role("button", name="Edit", exact=True).click()
    await expect(ada.page.locator(".turn.user .bar-of-turn")).to_be_hidden()
    pause.go.set()
    await ada.sees_end()


@pytest.mark.full
async def test_operators_find_their_page_and_need_no_other_token(people: SitDown, site: Server) -> None:
    link, token = "#operate", "sessionStorage.setItem('turnstream.token', '{}')"
    ada = await people(site.url)
    await expect(ada.page.locator(link)).to_be_visible()  # without tokens, every person is an operator
    of_a_person, of_an_operator = await site.token("ada"), await site.token("ops", "read", "admin")
    await ada.page.evaluate(token.format(of_a_person))
    async with ada.page.expect_response("**/api/me") as allowed:
        await ada.reload()
    await (await allowed.value).finished()
    await ada.page.evaluate("() => new Promise((done) => setTimeout(done))")  # lets the page process the event
    await expect(ada.page.locator(link)).to_be_hidden()
    await ada.page.evaluate(token.format(of_an_operator))
    await ada.reload()
    await ada.page.click(link)
    await expect(ada.page.locator("#as-of")).to_contain_text("as of")


@pytest.mark.full
async def test_a_server_without_the_page_for_operators_has_no_link_to_it(people: SitDown, database_url: str) -> None:
    async with serving(
        database_url, extensions=[DEMO, *(installed()[name] for name in ("catalog", "chat_stream", "page", "uploads"))]
    ) as server:
        ada = await people(server.url)
        ada.expects("404", "ERR_CONNECTION_REFUSED")  # the server exits before the browser
        async with ada.page.expect_response("**/admin") as asked:
            await ada.reload()
        assert (await asked.value).status == 404
        await expect(ada.page.locator("#operate")).to_be_hidden()
