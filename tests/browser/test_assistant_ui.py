"""The code of assistant-ui.md with the packages and with assistant-ui, in Chromium against the real server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser.wirings import Wiring, bundled, code_of, wired
from tests.node.conftest import node, packages
from tests.support.pictures import PIXEL

__all__ = ["node", "packages"]

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs("Chromium", "npm"), pytest.mark.timeout(180)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def wiring(packages: Path, shared_database_url: str) -> AsyncIterator[Wiring]:
    script = bundled(packages, "assistant-ui.jsx", code_of("app/turnstream/web/packages/assistant-ui.md", "jsx"))
    async with wired(script, shared_database_url) as wiring:
        yield wiring


async def ask(page: Page, words: str) -> None:
    await page.fill("textarea", words)
    await page.click("text=Send")


def newest(page: Page) -> Locator:
    return page.locator("main > div").last


async def test_tools_of_server_and_page_approvals_and_another_answer(wiring: Wiring, browser: Browser) -> None:
    page = await wiring.open(browser)
    await ask(page, "tools")
    await expect(newest(page).locator("[data-tool=weather]")).to_contain_text('"degrees":12')
    await expect(newest(page).locator("blockquote")).to_have_text("Let me look.")
    await expect(newest(page)).to_contain_text("That is it.")
    await ask(page, "where")
    await expect(newest(page).locator("[data-tool=getLocation]")).to_contain_text("Bern")
    await expect(newest(page)).to_contain_text("That is it.")
    assert wiring.model.requests[-1].system == "Be brief."
    await ask(page, "mail")
    await page.click("text=Approve")
    await expect(newest(page).locator("[data-tool=send_mail]")).to_contain_text("sent to ada")
    await expect(newest(page)).to_contain_text("That is it.")
    asked = len(wiring.model.requests)
    await newest(page).get_by_text("Again").click()
    await page.click("text=Approve")
    await expect(newest(page)).to_contain_text("That is it.")
    assert len(wiring.model.requests) == asked + 2
    await page.context.close()


async def test_an_answer_continues_after_a_reload_and_after_a_cut_and_cancel_stops_it(
    wiring: Wiring, browser: Browser
) -> None:
    page = await wiring.open(browser)
    await ask(page, "wait")
    await expect(newest(page)).to_contain_text("One ")
    await page.reload()
    await page.locator("#threads").get_by_text("wait").first.click()
    await expect(newest(page)).to_contain_text("One ")
    wiring.cut()
    wiring.model.pauses[-1].go.set()
    await expect(newest(page)).to_contain_text("One two.")
    await expect(page.locator("main > div")).to_have_count(2)
    await ask(page, "wait")
    await expect(newest(page)).to_contain_text("One ")
    await page.click("text=Cancel")
    assert await wiring.newest_status() == "cancelled"
    await page.context.close()


async def test_a_file_reaches_the_model_and_the_error_of_a_turn_the_person(wiring: Wiring, browser: Browser) -> None:
    page = await wiring.open(browser)
    async with page.expect_file_chooser() as choosing:
        await page.click("text=Attach")
    await (await choosing.value).set_files({"name": "sea.png", "mimeType": "image/png", "buffer": PIXEL})
    await expect(page.get_by_text("sea.png")).to_be_visible()
    await ask(page, "recall")
    await expect(newest(page)).to_contain_text("text recall / image")
    await ask(page, "fail")
    await expect(newest(page).get_by_role("alert")).to_have_text("It cannot be done.")
    await page.context.close()


async def test_threads_are_the_chats_of_the_server(wiring: Wiring, browser: Browser) -> None:
    page = await wiring.open(browser)
    threads, wording = page.locator("#threads > div"), "plain, about ships"
    before = len((await wiring.api.get("/api/chats")).json()["chats"])
    await expect(threads).to_have_count(before)
    await ask(page, wording)
    await expect(newest(page)).to_contain_text("That is it.")
    await expect(threads.get_by_text(wording)).to_be_visible()  # shows the thread's title
    await page.click("text=New thread")
    await expect(page.locator("main > div")).to_have_count(0)
    await ask(page, "wait")
    await expect(newest(page)).to_contain_text("One ")
    await threads.get_by_text(wording).click()
    await expect(newest(page)).to_contain_text("That is it.")
    wiring.model.pauses[-1].go.set()
    assert await wiring.newest_status() == "complete"  # opening another thread does not stop the answer
    await page.reload()
    await expect(threads).to_have_count(before + 2)
    await threads.get_by_text(wording).click()
    await expect(newest(page)).to_contain_text("That is it.")
    await threads.filter(has_text=wording).get_by_text("Delete").click()
    await expect(threads).to_have_count(before + 1)
    await page.reload()
    await expect(threads).to_have_count(before + 1)
    await page.context.close()
