"""A person signs in to a tool's server, and the chat continues."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.scenes import one_call
from tests.browser.test_talk import use
from tests.extensions.mcp.oauth_issuer import Office, office
from tests.extensions.mcp.test_sign_in import desk_at
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.extensions.mcp.offers import Offers
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.scripted import message_of, text

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.extensions("mcp")]


@pytest_asyncio.fixture(loop_scope="session")
async def place() -> AsyncIterator[Office]:
    async with office() as place:
        yield place


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str, place: Office) -> AsyncIterator[Server]:
    async with desk_at(database_url, None, place, new_master_key()) as desk:
        offers = desk.server.services.states["mcp"]
        assert isinstance(offers, Offers)
        assert offers.sign_ins is not None
        offers.sign_ins.oauth.base = desk.server.url  # the port is known after the start
        yield desk.server


async def test_a_person_signs_in_and_the_chat_continues(
    people: SitDown, site: Server, api: Client, place: Office
) -> None:
    reply = one_call("calendar__events", {})
    ada = await people(site.url, await use(api, site.scripts.model(reply, message_of(text("You meet Bob.")))))
    await ada.say("What is on today?")
    link = ada.page.get_by_role("link", name="Sign in to calendar")
    await link.wait_for()
    async with ada.page.context.expect_page() as opened:
        await link.click()
    page = await opened.value
    await expect(page.get_by_role("heading")).to_have_text("Sign in to calendar")
    await expect(page.get_by_role("listitem").first).to_have_text("calendar.read")
    assert place.calendar.calls == 0
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("heading")).to_have_text("You are signed in to calendar")
    await page.close()
    await ada.sees_end()
    await ada.sees("You meet Bob.")
    assert place.calendar.calls == 1
    await ada.sees_what_is_stored(api)


@pytest.mark.full
async def test_a_person_declines_to_sign_in(people: SitDown, site: Server, api: Client, place: Office) -> None:
    reply = one_call("calendar__events", {})
    ada = await people(site.url, await use(api, site.scripts.model(reply, message_of(text("Then not.")))))
    await ada.say("What is on today?")
    await ada.page.get_by_role("link", name="Sign in to calendar").wait_for()
    await ada.press("Decline", ada.page.locator(".ask"))
    await ada.sees_end()
    await ada.sees("Then not.")
    assert place.calendar.calls == 0
