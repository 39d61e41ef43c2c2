"""The network goes away and comes back: nothing that a person has written is lost, or lands in another chat."""

import pytest

from tests.browser.conftest import SitDown
from tests.support.http_client import Client
from tests.support.http_server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
    await ada.context.set_offline(False)
    await ada.sees("Hello.")
    await ada.page.get_by_text("Reconnecting").wait_for(state="hidden")
    await ada.say("And now?")
    await ada.sees("And now?")
    await ada.sees_end()
    assert ada.chat == other.assistant["chat_id"]
    assert len(await ada.sees_what_is_stored(api)) == 4


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
