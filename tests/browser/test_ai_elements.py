"""The code of ai-elements.md runs with the packages, in Chromium against the real server.

AI Elements has no npm package: `elements.jsx` contains replacements.
"""

import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser.wirings import Wiring, bundled, code_of, wired
from tests.node.conftest import node, packages

__all__ = ["node", "packages"]

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs("Chromium", "npm"), pytest.mark.timeout(180)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def wiring(packages: Path, shared_database_url: str) -> AsyncIterator[Wiring]:
    shutil.copy(Path(__file__).with_name("elements.jsx"), packages)
    names = ("confirmation", "conversation", "message", "prompt-input", "reasoning", "tool")
    aliases = [f"--alias:@/components/ai-elements/{name}=./elements.jsx" for name in names]
    script = bundled(
        packages, "ai-elements.jsx", code_of("app/turnstream/web/packages/ai-elements.md", "jsx"), *aliases
    )
    async with wired(script, shared_database_url) as wiring:
        yield wiring


async def ask(page: Page, words: str) -> None:
    await page.fill("textarea", words)
    await page.get_by_label("Submit").click()


def newest(page: Page) -> Locator:
    return page.locator("article").last


async def test_tools_reasoning_and_approvals(wiring: Wiring, browser: Browser) -> None:
    page = await wiring.open(browser, "tools")
    await ask(page, "tools")
    await expect(newest(page).locator("blockquote")).to_be_visible()
    await expect(newest(page).locator("output").first).to_contain_text('"degrees":12')
    await expect(newest(page)).to_contain_text("That is it.")
    await ask(page, "mail")
    await expect(newest(page)).to_contain_text("tool-send_mail approval-requested")
    # While the page still reads the resumed stream, the AI SDK stores an approval but does not send it.
    async with page.expect_response(re.compile(r"/stream$")) as resumed:
        await page.reload()
    await resumed.value
    await page.get_by_label("Submit").wait_for()
    await page.click("text=Approve")
    await expect(newest(page)).to_contain_text("sent to ada")
    await expect(newest(page)).to_contain_text("That is it.")
    await ask(page, "mail")
    await page.click("text=Deny")
    await expect(newest(page)).to_contain_text("tool-send_mail output-denied")
    await page.context.close()


async def test_a_file_the_history_and_the_error_of_a_turn(wiring: Wiring, browser: Browser) -> None:
    page = await wiring.open(browser, "files")
    await page.set_input_files("input", {"name": "sea.txt", "mimeType": "text/plain", "buffer": b"Salt."})
    await ask(page, "plain")
    await expect(newest(page)).to_contain_text("That is it.")
    await page.reload()
    await expect(page.locator("article")).to_have_count(2)
    await ask(page, "recall")
    await expect(newest(page)).to_contain_text("document  / text plain / text That is it. / text recall")
    await ask(page, "fail")
    await expect(page.get_by_role("alert")).to_have_text("It cannot be done.")
    await page.context.close()


async def test_an_answer_continues_after_a_reload_and_after_a_cut_and_stop_stops_it(
    wiring: Wiring, browser: Browser
) -> None:
    page = await wiring.open(browser, "cuts")
    await ask(page, "wait")
    await expect(newest(page)).to_contain_text("One ")
    await page.reload()
    await expect(newest(page)).to_contain_text("One ")
    wiring.cut()
    wiring.model.pauses[-1].go.set()
    await expect(newest(page)).to_contain_text("One two.")
    await expect(page.locator("article")).to_have_count(2)
    await ask(page, "wait")
    await expect(newest(page)).to_contain_text("One ")
    await page.get_by_label("Stop").click()
    assert await wiring.newest_status() == "cancelled"
    await page.context.close()
