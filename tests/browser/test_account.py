"""The account of an owner on the page: credentials, stored approvals, the audit trail, and the erasure."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.test_away import copies, until_forgotten
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
        await expect(logins.get_by_role("button")).to_have_count(1)  # the credential of this page has no button
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


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_copy_of_a_chat_is_shown_without_a_network_and_ends_with_its_token(
    people: SitDown, site: Server, tmp_path: Path, scheme: str
) -> None:
    token, other = await site.token("ada"), await site.token("ada")
    async with Client(site.url, None, other, "ada") as api:
        read = (await api.ask(await api.chat(title="Read before"))).assistant["chat_id"]
        deleted = (await api.ask(await api.chat(title="Deleted"))).assistant["chat_id"]
        ada = await people(site.url, read, color_scheme=scheme, storage_state=kept(site.url, token))
        ada.expects("Failed to load resource", "ERR_INTERNET_DISCONNECTED")
        for title in ("Deleted", "Read before"):
            await ada.page.get_by_role("link", name=title).click()
            await ada.sees("Hello.")
        await ada.page.click("#new-chat")
        await ada.context.set_offline(True)
        await ada.page.get_by_role("link", name="Read before").click()
        await ada.sees("Hello.")
        await ada.page.get_by_text("Reconnecting").wait_for()
        await ada.page.screenshot(path=tmp_path / f"away-{scheme}.png")
        assert sorted(await copies(ada)) == sorted([f"path {read}", f"path {deleted}"])
        await ada.page.click("#new-chat")
        await ada.context.set_offline(False)
        await api.json("DELETE", f"/api/chats/{deleted}")
        await ada.page.evaluate("id => { location.hash = id }", deleted)
        await until_forgotten(ada, deleted)
        assert await copies(ada) == [f"path {read}"]
        credentials = (await api.json("GET", "/api/account/credentials"))["credentials"]
        (used,) = [each["id"] for each in credentials if not each["current"]]
        await api.json("DELETE", f"/api/account/credentials/{used}")
    await ada.page.reload()
    await expect(ada.page.locator("#ask-token")).to_be_visible()
    await until_forgotten(ada, read)
    assert await copies(ada) == []
    await ada.page.fill("#words", "Words of Ada")
    await ada.page.fill("#ask-token input[name=token]", await site.token("bob"))
    await ada.page.keyboard.press("Enter")
    await ada.page.wait_for_url(f"{site.url}/")
    await ada.ready()
    await expect(ada.page.locator("#no-chats")).to_be_visible()
    await expect(ada.page.locator("#words")).to_have_value("")
    await expect(ada.page.get_by_text("Read before")).to_have_count(0)


@pytest.mark.parametrize("site", [False], indirect=True)
async def test_without_self_service_the_page_has_no_account(people: SitDown, site: Server) -> None:
    ada = await people(site.url)
    await expect(ada.page.get_by_role("button", name="Keys")).to_be_visible()
    await expect(ada.page.get_by_role("button", name="Your account")).to_be_hidden()
