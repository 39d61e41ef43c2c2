"""A person acts faster than the server answers, and loses no input."""

import asyncio

import pytest
from playwright.async_api import Route

from tests.browser.conftest import SitDown
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_message_sent_before_the_chat_was_read_is_shown_with_it_and_followed(
    people: SitDown, site: Server, api: Client
) -> None:
    await use(api, "plain", "Before")
    ada = await people(site.url)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        found = await route.fetch()
        asked.set()
        await answer.wait()
        await route.fulfill(response=found)

    await ada.page.route("**/turns", hold, times=1)
    await ada.page.get_by_role("link", name="Before").click()
    await asked.wait()
    await ada.say("Later")
    await ada.sees("Later")
    answer.set()
    await ada.sees_end()
    assert len(await ada.sees_what_is_stored(api)) == 2
