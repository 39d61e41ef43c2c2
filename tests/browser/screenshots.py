"""Redraws the images of docs/screenshots: `.venv/bin/python -m tests.browser.screenshots`"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import asyncpg
import structlog
from playwright.async_api import Browser, Page, async_playwright

from tests.browser.person import Person, sit_down
from tests.browser.scenes import Harbour, one_call, paused, three_calls
from tests.conftest import DISPOSABLE
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.programs import path_of
from turnstream.domain.errors import PermanentError
from turnstream.domain.rounds import Prices
from turnstream.extensions.embedded.server import EmbeddedPostgres
from turnstream.llm.models.catalog import Model, ProviderModels
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text
from turnstream.storage.migrations import upgrade

FOLDER = Path(__file__).parents[2] / "docs" / "screenshots"

ANSWER = [
    "## Today at 12:20\n\n",
    "The **best time** is two hours after low water: at `12:20` there are 2.4 m over the bar, and wind 4 is fine. ",
    "No ferry goes in winter, so you need the pilot boat.\n\n",
    "| time | depth |\n|---|---|\n| 10:21 | 1.2 m |\n| 12:20 | 2.4 m |\n| 16:37 | 4.1 m |\n\n",
    "```python\ndef depth(hours: float) -> float:\n    return 1.2 + 2.9 * TWELFTHS[round(hours)] / 12  # metres\n```\n",
]
USAGE = {"input_tokens": 1200, "output_tokens": 214, "cache_read_input_tokens": 8400}

SPREAD = """
    CREATE TEMPORARY TABLE moved AS
        SELECT turn_id, call, (random() * random() * 58)::int * interval '1 minute' AS back FROM charges;
    UPDATE charges SET charged_at = charged_at - back FROM moved
        WHERE moved.turn_id = charges.turn_id AND moved.call = charges.call;
    UPDATE rounds SET first_delta_at = started_at + (0.2 + random() * random() * 3) * interval '1 second';
    UPDATE tool_calls SET started_at = settled_at - random() * random() * 4 * interval '1 second';
"""


def _replies() -> list[Reply]:
    berth = one_call("book_berth", {"port": "Cuxhaven", "nights": 2}, "call-berth")
    return [three_calls(), message_of(text(*ANSWER), usage=USAGE), berth, message_of(text("Berth 14 is yours."))]


async def draw(url: str, browser: Browser) -> None:
    harbour = Harbour()
    async with serving(url, harbour.toolset()) as server, Client(server.url) as api:
        for title in ("What the bell means at night", "A winter berth", "Packing list"):
            await api.json("POST", "/api/chats", 201, json={"title": title})
        options: dict[str, Any] = {"viewport": {"width": 1000, "height": 640}, "color_scheme": "light"}
        async with sit_down(browser, server.url, **options) as ada:
            await _picture(ada.page, "empty")
            chat = await _cross(ada, server, api, harbour)
            await _timeline(ada)
            await _book(ada)
        await _operate(server, api, browser)
        phone = {"viewport": {"width": 390, "height": 700}, "is_mobile": True, "has_touch": True}
        async with sit_down(browser, f"{server.url}/#{chat}", **phone) as bob:
            await bob.page.evaluate("document.querySelector('#transcript').scrollTop = 0")
            await _picture(bob.page, "phone")


async def _cross(ada: Person, server: Server, api: Client, harbour: Harbour) -> str:
    server.scripts.offers.append(ProviderModels(ScriptedProvider(_replies()), ["tide-1"]))
    settings = {"model": "tide-1"}
    chat = await api.json("POST", "/api/chats", 201, json={"title": "Crossing to the island", "settings": settings})
    await ada.open(chat["id"])
    chart: Any = {"name": "harbour chart.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4"}
    await ada.page.set_input_files("#pick-attachments", chart)
    await ada.say("When can we cross to the island today?\nWe are three, with bikes.")
    for state in ("done", "failed", "running"):
        await ada.page.locator(f".card[data-state={state}]").wait_for()
    await ada.page.locator(".card", has_text="asking the gauge").wait_for()
    await _picture(ada.page, "streaming")
    await asyncio.sleep(1.2)  # gives the timeline a visible length
    harbour.open.set()
    await ada.sees_end()
    return str(chat["id"])


async def _timeline(ada: Person) -> None:
    await ada.press("Timeline")
    await ada.page.locator(".timeline tbody th").first.wait_for()
    await ada.page.evaluate("document.querySelector('#transcript').scrollTop += 400")
    await _picture(ada.page, "timeline")


async def _book(ada: Person) -> None:
    await ada.press("Timeline")
    await ada.say("Book us a berth for two nights")
    await ada.page.locator(".ask").wait_for()
    await _picture(ada.page, "approval")
    await ada.page.emulate_media(color_scheme="dark")
    await _picture(ada.page, "dark")


async def _operate(server: Server, api: Client, browser: Browser) -> None:
    """Draws the page for operators, with some seconds of work that are spread over an hour."""
    pause = Pause()
    offers = {
        "tide-1": ScriptedProvider(_looks_at_the_weather),
        "storm-2": ScriptedProvider(lambda _: [PermanentError("authentication_error", "The key is wrong.")]),
        "far-1": ScriptedProvider([paused(pause, "It is ", "far.")]),
        "berth-1": ScriptedProvider([one_call("book_berth", {"port": "Cuxhaven", "nights": 2})]),
    }
    prices = Prices(3.0, 15.0)
    server.scripts.offers[:0] = [ProviderModels(each, [Model(id, prices=prices)]) for id, each in offers.items()]
    for number in range(40):
        await api.ask(await api.chat(), model="tide-1" if number % 9 else "storm-2")
    chat = await api.chat()
    for model in ("far-1", "tide-1"):
        await api.say(chat, model=model, on_busy="enqueue")
    await api.say(await api.chat(), model="berth-1")
    await pause.reached.wait()
    connection = await asyncpg.connect(server.database_url)
    await connection.execute(SPREAD)
    await connection.close()
    async with sit_down(browser, f"{server.url}/admin", viewport={"width": 1000, "height": 860}) as ops:
        await ops.page.locator("#open-turns .why", has_text="silent").wait_for()
        await _picture(ops.page, "admin")
    pause.go.set()


def _looks_at_the_weather(request: ModelRequest) -> Reply:
    if "tool_result" in repr(request.messages[-1]):
        return message_of(text("Wind 4 from the south-west."), usage=USAGE)
    return one_call("weather", {"port": "Cuxhaven"})


async def _picture(page: Page, name: str) -> None:
    await page.mouse.move(0, 0)
    await page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 200)))")
    await page.screenshot(path=FOLDER / f"{name}.png", animations="disabled")


async def main(url: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path_of("Chromium"))
        await draw(url, browser)
        await browser.close()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "server", DISPOSABLE) as dsn:
        upgrade(dsn)
        asyncio.run(main(dsn))
