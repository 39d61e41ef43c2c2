"""The code of copilotkit.md with the packages and CopilotKit's own chat, in Chromium against the real server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser.wirings import Wiring, bundled, code_of, wired
from tests.node.conftest import copilotkit, node
from tests.support.pictures import PIXEL

__all__ = ["copilotkit", "node"]

pytestmark = [
    pytest.mark.extensions("ag_ui"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.needs("Chromium", "npm"),
    pytest.mark.timeout(420),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def wiring(copilotkit: Path, shared_database_url: str) -> AsyncIterator[Wiring]:
    script = bundled(copilotkit, "copilotkit.jsx", code_of("app/turnstream/web/packages/copilotkit.md", "jsx"))
    async with wired(script, shared_database_url) as wiring:
        yield wiring


async def ask(page: Page, words: str) -> None:
    await page.fill("textarea", words)
    await page.keyboard.press("Enter")


def answers(page: Page, text: str) -> Locator:
    return page.get_by_test_id("copilot-assistant-message").get_by_text(text, exact=True)


async def test_tools_of_server_and_page_and_approvals(wiring: Wiring, browser: Browser) -> None:
    page = await wiring.open(browser, "tools")
    await ask(page, "tools")
    await expect(page.locator("[data-tool=weather]")).to_contain_text('"degrees":12')
    await expect(page.get_by_text("Let me look.")).to_have_count(1)
    await expect(answers(page, "That is it.")).to_have_count(1)
    await ask(page, "where")
    await expect(page.locator("[data-tool=getLocation]")).to_contain_text("Bern")
    await expect(answers(page, "That is it.")).to_have_count(2)
    assert "a harbour" in (wiring.model.requests[-1].system or "")
    await ask(page, "mail")
    await expect(page.get_by_text("Approve")).to_be_visible()
    await page.reload()
    await page.click("text=Approve")
    await expect(page.locator("[data-tool=send_mail]")).to_contain_text("sent to ada")
    await expect(answers(page, "That is it.")).to_have_count(3)
    await ask(page, "mail")
    await page.click("text=Deny")
    await expect(page.locator("[data-tool=send_mail]").last).to_contain_text("did not allow this call")
    await page.context.close()


async def test_a_file_reaches_the_model_and_the_error_of_a_turn_the_page(wiring: Wiring, browser: Browser) -> None:
    page = await wiring.open(browser, "files")
    await page.set_input_files("input", {"name": "sea.png", "mimeType": "image/png", "buffer": PIXEL})
    await ask(page, "recall")
    await expect(answers(page, "text recall / image")).to_have_count(1)
    await ask(page, "fail")
    await expect(page.get_by_role("alert").get_by_text("It cannot be done.")).to_be_visible()
    await page.context.close()


async def test_an_answer_continues_after_a_reload_and_after_a_cut_and_stop_stops_it(
    wiring: Wiring, browser: Browser
) -> None:
    page = await wiring.open(browser, "cuts")
    await ask(page, "wait")
    await expect(answers(page, "One")).to_be_visible()
    await page.reload()
    await expect(answers(page, "One")).to_be_visible()
    wiring.cut()
    wiring.model.pauses[-1].go.set()
    await expect(answers(page, "One two.")).to_have_count(1)
    await ask(page, "wait")
    await expect(answers(page, "One")).to_be_visible()
    wiring.cut()
    wiring.model.pauses[-1].go.set()
    await expect(answers(page, "One two.")).to_have_count(2)
    await ask(page, "wait")
    await expect(answers(page, "One")).to_be_visible()
    await page.get_by_test_id("copilot-send-button").click()  # during an answer this button stops it
    assert await wiring.newest_status() == "cancelled"
    await ask(page, "plain")
    await expect(answers(page, "That is it.")).to_have_count(1)
    await page.context.close()
