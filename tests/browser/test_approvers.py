"""The inbox of a person who answers calls of other owners."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.person import Person
from tests.browser.test_shares import kept
from tests.integration.api.test_approvals import Bank, asked
from tests.integration.api.test_waiting import finished
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.tools.tool import tools_of
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str, bank: Bank) -> AsyncIterator[Server]:
    async with serving(database_url, Toolset(tools_of(bank))) as server:
        yield server


@asynccontextmanager
async def owner_of(site: Server) -> AsyncIterator[Client]:
    async with Client(site.url, None, await site.token("ada"), "ada") as ada:
        yield ada


async def with_token(people: SitDown, site: Server, owner: str, **more: Any) -> Person:
    return await people(site.url, storage_state=kept(site.url, await site.token(owner, **more)))


async def test_an_approver_finds_the_call_in_the_inbox_and_approves_it(
    people: SitDown, site: Server, bank: Bank
) -> None:
    async with owner_of(site) as ada:
        turn, _ = await asked(site, ada, 3)
        grace = await with_token(people, site, "grace")
        await grace.page.locator("#waiting summary").click()
        await grace.page.locator("#waiting .other").click()
        dialog = grace.page.get_by_role("dialog", name="pay, called for ada")
        await expect(dialog).to_contain_text('"euros": 3')
        await expect(dialog.get_by_role("button", name="Allow for this chat")).to_have_count(0)
        await grace.press("Allow", dialog)
        await expect(dialog).to_be_hidden()
        await expect(grace.page.locator("#waiting")).to_be_hidden()
        await finished(ada, turn)
        assert bank.paid == [3]


async def test_a_call_that_another_approver_has_answered_leaves_the_inbox(
    people: SitDown, site: Server, bank: Bank
) -> None:
    async with owner_of(site) as ada:
        turn, call = await asked(site, ada, 4)
        heidi = await with_token(people, site, "heidi", roles=frozenset({"manager"}))
        await heidi.page.locator("#waiting summary").click()
        await heidi.page.locator("#waiting .other").click()
        dialog = heidi.page.get_by_role("dialog", name="pay, called for ada")
        await dialog.wait_for()
        async with Client(site.url, None, await site.token("grace"), "grace") as grace:
            deny = {"type": "deny", "tool_use_id": call["tool_use_id"], "input_digest": call["input_digest"]}
            await grace.json("POST", f"/api/approvals/{turn.url.rpartition('/')[2]}", json={"actions": [deny]})
        heidi.expects(r"(404|409) \(")
        await heidi.press("Allow", dialog)
        await expect(dialog).to_be_hidden()
        await expect(heidi.page.locator("#waiting")).to_be_hidden()
        await finished(ada, turn)
        assert bank.paid == []


async def test_a_person_who_may_not_answer_has_an_empty_inbox(people: SitDown, site: Server) -> None:
    async with owner_of(site) as ada:
        await asked(site, ada, 5)
        eve = await with_token(people, site, "eve")
        await eve.page.goto("about:blank")  # after a reload, Playwright cannot read the previous page's response
        async with eve.page.expect_response(lambda response: "/api/approvals" in response.url) as seen:
            await eve.page.goto(site.url)
        assert (await (await seen.value).json())["calls"] == []
        await expect(eve.page.locator("#waiting")).to_be_hidden()
