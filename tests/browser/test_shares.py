"""A chat that is shared by a link: its owner's dialog, and the page for people who have the link."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.scenes import Harbour, one_call
from tests.browser.test_budgets import violations
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server, pausing, serving
from turnstream.scripted import Pause, message_of, text, thinking

pytestmark = [pytest.mark.extensions("sharing"), pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str, harbour: Harbour, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    async with serving(database_url, harbour.toolset(), sharing=getattr(request, "param", True)) as server:
        yield server


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_live_link_is_made_read_and_revoked(people: SitDown, site: Server, api: Client, scheme: str) -> None:
    pause = Pause()
    first = message_of(
        thinking("a secret thought"), text("# Tides\n\nThe **moon** pulls. <img src=x onerror=alert(1)>")
    )
    chat = await use(api, site.scripts.model(first, pausing(pause, "The sun ", "pulls too.")))
    ada = await people(site.url, chat, color_scheme=scheme)
    await ada.say("Why are there tides?")
    await expect(ada.page.locator("#turns strong")).to_have_text("moon")
    await ada.page.get_by_label("Export and share").click()
    await ada.page.get_by_role("button", name="Share by a link").click()
    dialog = ada.page.get_by_role("dialog")
    await dialog.get_by_label("Show messages that come later, too").check()
    await dialog.get_by_role("button", name="Make a link").click()
    address = await dialog.get_by_label("Address of the link").input_value()
    assert await violations(ada) == []
    await dialog.get_by_role("button", name="Close").click()

    eve = await people(address, color_scheme=scheme)
    await expect(eve.page.locator("article.user")).to_have_text("Why are there tides?")
    await expect(eve.page.locator("article.assistant strong")).to_have_text("moon")
    assert await eve.page.locator("article img").count() == 0
    assert "secret" not in await eve.page.content()
    assert await violations(eve) == []

    await ada.say("And the sun?")
    await expect(eve.page.locator("article.assistant").nth(1)).to_contain_text("The sun")
    pause.go.set()
    await expect(eve.page.locator("article.assistant").nth(1)).to_have_text("The sun pulls too.")

    eve.expected.append("404")
    await ada.page.get_by_label("Export and share").click()
    await ada.page.get_by_role("button", name="Share by a link").click()
    assert await dialog.get_by_label("Address of the link").count() == 0, "the secret is shown once"
    await dialog.get_by_role("button", name="Revoke the link").click()
    await expect(dialog.get_by_role("listitem")).to_have_count(0)
    await expect(eve.page.locator("#title")).to_have_text("This chat is not shared any more")
    await expect(eve.page.locator("article")).to_have_count(0)


@pytest.mark.parametrize("site", [False], indirect=True)
async def test_without_the_feature_the_page_offers_no_links(people: SitDown, site: Server) -> None:
    ada = await people(site.url)
    await ada.page.get_by_label("Export and share").click()
    await expect(ada.page.get_by_role("button", name="As Markdown")).to_be_visible()
    await expect(ada.page.get_by_role("button", name="Share by a link")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_members_are_added_and_use_the_chat(people: SitDown, site: Server, scheme: str) -> None:
    tokens = {name: await site.token(name) for name in ("ada", "bob")}
    async with Client(site.url, None, tokens["ada"], "ada") as api:
        first, second = message_of(text("Half past six.")), message_of(text("At noon."))
        chat = await api.chat(title="Ferries", settings={"model": site.scripts.model(first, second)})
        await api.ask(chat, "When does the first ferry leave?")
    id = chat.rpartition("/")[2]
    ada = await people(site.url, id, color_scheme=scheme, storage_state=kept(site.url, tokens["ada"]))
    await ada.page.get_by_label("Export and share").click()
    await ada.page.get_by_role("button", name="Members").click()
    dialog = ada.page.get_by_role("dialog")
    await dialog.get_by_label("Name of the person, as they log in").fill("bob")
    await dialog.get_by_role("button", name="Add").click()
    await expect(dialog.get_by_role("listitem")).to_have_count(1)
    assert await violations(ada) == []

    bob = await people(site.url, color_scheme=scheme, storage_state=kept(site.url, tokens["bob"]))
    shared = bob.page.get_by_role("region", name="Shared with you")
    await expect(shared.get_by_role("link")).to_have_text("Ferriesof ada")
    await shared.get_by_role("link").click()
    await expect(bob.page.locator("article.user")).to_contain_text("When does the first ferry leave?")
    await expect(bob.page.locator("#words")).to_be_hidden()
    await expect(bob.page.locator("#reads")).to_be_visible()
    assert await violations(bob) == []

    await dialog.get_by_label("Role of bob").select_option("write")
    await expect(ada.page.locator("dialog .trouble").last).to_have_text("")
    async with Client(site.url, None, tokens["bob"], "bob") as api:
        while (await api.json("GET", "/api/memberships"))["memberships"][0]["role"] != "write":
            pass
    await dialog.get_by_role("button", name="Close").click()
    await bob.reload()
    await expect(bob.page.locator("#words")).to_be_visible()
    await expect(bob.page.locator("#open-settings")).to_be_hidden()
    await bob.say("And the last one?")
    await expect(ada.page.locator("article.user .author").last).to_have_text("From bob")
    await expect(ada.page.locator("article.assistant").last).to_contain_text("At noon.")
    await expect(bob.page.locator("article.assistant").last).to_contain_text("At noon.")

    await shared.get_by_role("link").hover()
    await shared.get_by_role("button", name="Leave Ferries").click()
    await bob.page.get_by_role("dialog").get_by_role("button", name="Leave", exact=True).click()
    await expect(shared).to_have_count(0)
    await expect(bob.page.locator("#title")).to_have_text("New chat")


@pytest.mark.extensions("sharing", "inbox")
async def test_a_member_finds_the_call_that_waits_and_allows_it(
    people: SitDown, site: Server, harbour: Harbour
) -> None:
    tokens = {name: await site.token(name) for name in ("ada", "bob")}
    async with Client(site.url, None, tokens["ada"], "ada") as api:
        berth = {"port": "Cuxhaven", "nights": 2}
        chat = await use(api, site.scripts.model(one_call("book_berth", berth), message_of(text("Booked."))), "Berths")
        await api.json("POST", f"/api/chats/{chat}/members", json={"member": "bob", "role": "approve"})
        turn = await api.say(f"/api/chats/{chat}")
        async with api.follow(turn.stream_url) as events:
            await anext(event async for event in events if event.name == "action_required")
        bob = await people(site.url, storage_state=kept(site.url, tokens["bob"]))
        await bob.page.locator("#waiting summary").click()
        await expect(bob.page.locator("#waiting li")).to_have_count(1)
        await bob.page.locator("#waiting li a").click()
        await bob.press("Allow")
        await bob.sees_end()
        assert harbour.booked == ["Cuxhaven 2"]


def kept(url: str, token: str) -> dict[str, Any]:
    """Returns what the browser stores for a person with a token."""
    return {"cookies": [], "origins": [{"origin": url, "localStorage": [{"name": "turnstream.token", "value": token}]}]}
