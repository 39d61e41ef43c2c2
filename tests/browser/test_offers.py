"""Prompts as slash commands, and resources of MCP servers as attachments."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.test_talk import use
from tests.extensions.mcp.mcp_servers import OFFERS
from tests.extensions.mcp.oauth_issuer import listening
from tests.extensions.mcp.test_offers import place_with
from tests.extensions.mcp.test_own_servers import LOCAL, TIMING, Wiki
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.server_process import free_port
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.own_servers import OwnServers
from turnstream.extensions.mcp.servers import McpServers
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.scripted import message_of, text
from turnstream.tools.toolset import Toolset

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.extensions("mcp")]


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str) -> AsyncIterator[Server]:
    away = McpServer("away", url=f"http://127.0.0.1:{free_port()}/mcp")
    async with place_with(database_url, None, OFFERS, away) as place:
        yield place.server


@pytest_asyncio.fixture(loop_scope="session")
async def wiki() -> AsyncIterator[Wiki]:
    wiki = Wiki()
    async with listening(wiki.app, wiki.port):
        yield wiki


async def test_a_person_fills_in_a_prompt_and_sends_it(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url, await use(api, site.scripts.model(message_of(text("A fine text.")))))
    field, options = ada.page.locator("#words"), ada.page.get_by_role("option")
    await field.press("/")
    await expect(options).to_have_count(4)
    await expect(ada.page.locator("#prompts")).to_contain_text("The MCP server away cannot be reached now.")
    await field.press("ArrowDown")
    await expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    await field.press_sequentially("rev")
    await expect(options).to_have_count(1)
    await field.press("Enter")
    dialog = ada.page.get_by_role("dialog", name="Prompt: Review a text")
    await dialog.get_by_label("text").first.fill("Ahoy")
    await dialog.get_by_label("tone").first.fill("hu")
    await dialog.get_by_role("group", name="Proposed for tone").get_by_role("button", name="humorous").click()
    await ada.press("Put into the message", dialog)
    await expect(field).to_have_value("Review this in a humorous tone:\n\nAhoy")
    await field.press("Enter")
    await ada.sees("A fine text.")
    await ada.sees_end()
    await ada.sees_what_is_stored(api)


async def test_a_prompt_without_arguments_is_put_into_the_message_at_once(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(site.url, await use(api, site.scripts.model(message_of(text("A dot.")))))
    field = ada.page.locator("#words")
    await field.press_sequentially("/look")
    await ada.page.get_by_role("option", name="look").click()
    await expect(field).to_have_value("What is this?")
    await expect(ada.page.locator("#attached .chip")).to_have_count(1)
    await field.fill("/nothing of this name")
    await expect(ada.page.locator("#prompts")).to_be_hidden()
    await field.fill("/re")
    await expect(ada.page.locator("#prompts")).to_be_visible()
    await field.press("Escape")
    await expect(ada.page.locator("#prompts")).to_be_hidden()


async def test_a_person_attaches_a_resource(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url, await use(api, site.scripts.model(message_of(text("It was late.")))))
    await ada.press("Attach from a server")
    dialog = ada.page.get_by_role("dialog", name="Attach from a server")
    await expect(dialog).to_contain_text("The MCP server away cannot be reached now.")
    await ada.press("Attach song", dialog)
    await expect(dialog.get_by_role("alert")).to_contain_text("of no type that a message may have")
    await ada.press("Attach Notes of today", dialog)
    await expect(dialog).to_be_hidden()
    await expect(ada.page.locator("#attached .chip")).to_contain_text("today")
    await ada.press("Attach from a server")
    await dialog.get_by_label("Value of day").fill("monday")
    await ada.press("Attach", dialog)
    await expect(ada.page.locator("#attached .chip")).to_have_count(2)
    await ada.say("Was the ferry late?")
    await ada.sees("It was late.")
    message, _ = (await api.json("GET", f"/api/chats/{ada.chat}/turns"))["turns"]
    assert [block["type"] for block in message["blocks"]].count("document") == 2
    ada.expects(r"422 \(Unprocessable")


async def test_without_servers_the_page_offers_nothing(people: SitDown, database_url: str, api: Client) -> None:
    async with place_with(database_url, None) as place:
        ada = await people(place.server.url)
        await expect(ada.page.locator("#attach-resource")).to_be_hidden()
        await ada.page.locator("#words").press("/")
        await expect(ada.page.locator("#prompts")).to_be_hidden()


async def test_a_person_adds_and_removes_a_server_of_their_own(
    people: SitDown, database_url: str, wiki: Wiki, api: Client
) -> None:
    toolset = Toolset([], sources=[McpServers([]), OwnServers(LOCAL, TIMING)])
    async with serving(database_url, toolset, master_key=new_master_key()) as server:
        ada = await people(server.url)
        await ada.press("Attach from a server")
        await ada.press("Your servers (0)")
        dialog = ada.page.get_by_role("dialog", name="Your servers")
        await dialog.get_by_label("Name").fill("wiki")
        await dialog.get_by_label("Address").fill(wiki.url)
        await dialog.get_by_label("Header").fill("X-Key: secret")
        await ada.press("Add", dialog)
        await expect(dialog).to_contain_text("wiki was added. You accept its tools: find.")
        await expect(dialog.get_by_role("listitem")).to_contain_text(wiki.url)
        await ada.press("Remove wiki", dialog)
        await expect(dialog.get_by_role("listitem")).to_have_count(0)
        await dialog.get_by_label("Name").fill("inside")
        await dialog.get_by_label("Address").fill("https://10.0.0.1/mcp")
        ada.expects(r"422 \(Unprocessable")
        await ada.press("Add", dialog)
        await expect(dialog.get_by_role("alert")).to_contain_text("internal address")
        await ada.page.close()  # the page is closed before the server exits
