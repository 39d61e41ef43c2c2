"""The account of an owner on the page: credentials, remembered approvals, the audit trail, and the erasure."""

from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.test_budgets import violations
from tests.browser.test_shares import kept
from tests.support.http_client import Client
from tests.support.http_server import Server, serving

pytestmark = [pytest.mark.extensions("self_service"), pytest.mark.asyncio(loop_scope="session")]

OLD_ENTRIES = "INSERT INTO audit (kind, owner, detail) SELECT 'token.created', 'ada', '{}' FROM generate_series(1, 20)"
ENTRIES = "SELECT count(*) FROM audit WHERE owner = 'ada'"
GRANT = "INSERT INTO grants (id, chat_id, tool, digest, turn_id, tool_use_id) VALUES ($1, $2, 'send_mail', '', $1, 'c')"


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    async with serving(database_url, self_service=getattr(request, "param", True)) as server:
        yield server


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_an_owner_revokes_credentials_and_grants_and_asks_for_an_erasure(
    people: SitDown, site: Server, scheme: str
) -> None:
    token, other = await site.token("ada"), await site.token("ada", "read")
    async with Client(site.url, None, token, "ada") as api:
        chat = await api.chat(title="Mails")
        turn = await api.ask(chat)
        connection = await asyncpg.connect(site.database_url)
        await connection.execute(GRANT, UUID(turn.assistant["id"]), UUID(turn.assistant["chat_id"]))
        await connection.execute(OLD_ENTRIES)
        ada = await people(site.url, color_scheme=scheme, storage_state=kept(site.url, token))
        await ada.page.get_by_role("button", name="Your account").click()
        dialog = ada.page.get_by_role("dialog")
        await expect(dialog.get_by_text("ada: 1 chat")).to_be_visible()
        assert await violations(ada) == []

        logins = dialog.get_by_role("region", name="Logins and tokens")
        await expect(logins.get_by_role("listitem")).to_have_count(2)
        await expect(logins.get_by_role("button")).to_have_count(1)  # none for the credential of this page
        await logins.get_by_role("button").click()
        await expect(logins.get_by_role("listitem")).to_have_count(1)
        assert (await api.json("GET", "/api/account/credentials"))["credentials"][0]["current"]
        assert await connection.fetchval("SELECT count(*) FROM tokens") == 1, other

        grants = dialog.get_by_role("region", name="Allowed without asking")
        await grants.get_by_role("button", name="Revoke send_mail").click()
        await expect(grants.get_by_role("listitem")).to_have_count(0)
        assert (await api.json("GET", "/api/account/grants"))["grants"] == []

        await dialog.get_by_role("button", name="Erase everything").click()
        await ada.page.get_by_role("dialog").last.get_by_role("button", name="Erase", exact=True).click()
        await expect(dialog.get_by_text("Everything of yours is erased at")).to_be_visible()
        assert (await api.json("GET", "/api/account"))["erasure_due_at"]
        await dialog.get_by_role("button", name="Do not erase").click()
        await expect(dialog.get_by_role("button", name="Erase everything")).to_be_visible()
        assert (await api.json("GET", "/api/account"))["erasure_due_at"] is None
        await dialog.get_by_role("button", name="Close").click()

        await ada.page.get_by_role("button", name="Your account").click()
        trail = dialog.get_by_role("region", name="Audit trail")
        await expect(trail.get_by_role("listitem").first).to_contain_text("erasure.undone")
        await trail.get_by_role("button", name="Older entries").click()
        await expect(trail.get_by_role("listitem")).to_have_count(await connection.fetchval(ENTRIES))
        await connection.close()


@pytest.mark.parametrize("site", [False], indirect=True)
async def test_without_self_service_the_page_has_no_account(people: SitDown, site: Server) -> None:
    ada = await people(site.url)
    await expect(ada.page.get_by_role("button", name="Keys")).to_be_visible()
    await expect(ada.page.get_by_role("button", name="Your account")).to_be_hidden()
