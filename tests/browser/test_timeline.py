"""The timeline shows the server's measurements."""

import json

import pytest

from tests.browser.conftest import SitDown
from tests.browser.scenes import Harbour
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.scripted import message_of, text, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")

_BARS = """() => Object.fromEntries([...document.querySelectorAll('.timeline tbody tr')].map((row) => {
  const { left, right } = row.querySelector('.bar').getBoundingClientRect()
  return [row.querySelector('th').textContent, [left, right]]
}))"""


async def test_bars_of_parallel_tools_overlap_and_the_wait_for_a_person_is_shown(
    people: SitDown, site: Server, api: Client, harbour: Harbour
) -> None:
    calls = message_of(
        tool_use("tide_table", {"port": "Cuxhaven"}, "call-1"), tool_use("weather", {"port": "Cuxhaven"}, "call-2")
    )
    berth = message_of(tool_use("book_berth", {"port": "Cuxhaven", "nights": 2}, "call-3"))
    ada = await people(site.url)
    chat = await use(api, site.scripts.model(calls, berth, message_of(text("Done."))))
    await ada.open(chat)
    await ada.say("A berth, please")
    await ada.page.locator(".card[data-state=done]", has_text="wind 4").wait_for()
    harbour.open.set()
    await ada.press("Allow")
    await ada.sees_end()
    await ada.press("Timeline")
    await ada.page.locator(".timeline tbody th").first.wait_for()
    bars = await ada.page.evaluate(_BARS)
    tide, weather, berth_bar = bars["tide_table"], bars["weather"], bars["book_berth"]
    assert tide[0] < weather[1], "they ran at the same time"
    assert weather[0] < tide[1], "they ran at the same time"
    assert berth_bar[0] >= tide[1], "it ran when the model had asked for it"
    waited = ada.page.locator(".timeline .track[title*='waiting for you']")
    assert await waited.count() == 1
    turns = (await api.json("GET", f"/api/chats/{chat}/turns"))["turns"]
    notes = [block["notes"] for block in turns[1]["blocks"] if block["type"] == "tool_result"]
    assert all({"started_at", "seconds"} <= note.keys() for note in notes), json.dumps(notes)
