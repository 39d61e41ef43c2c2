"""Sign-in and sign-out of people on the page."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.person import Person
from tests.browser.test_away import copies
from tests.support.http_server import Server, serving
from tests.support.openid_issuer import CLIENT, SECRET, OpenIdIssuer, providing
from tests.support.server_process import free_port
from turnstream.scripted import message_of, text

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.extensions("login", "admin")]

SIGNED_OUT = r"401 \(Unauthorized\)"
FORBIDDEN = r"403 \(Forbidden\)"


@pytest_asyncio.fixture(loop_scope="session")
async def issuer() -> AsyncIterator[OpenIdIssuer]:
    async with providing() as issuer:
        yield issuer


@pytest_asyncio.fixture(loop_scope="session")
async def site(database_url: str, issuer: OpenIdIssuer) -> AsyncIterator[Server]:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    issuer.redirect_uris = [f"{base}/login/callback/main"]
    async with serving(
        database_url,
        port=port,
        login_url=base,
        login_issuer=issuer.url,
        login_client_id=CLIENT,
        login_client_secret=SECRET,
        login_title="Example",
        login_groups_claim="groups",
        login_scopes="none",
        login_roles="people=read chat approve, ops=admin",
    ) as server:
        yield server


async def visitor(people: SitDown, site: Server, path: str) -> Person:
    """Returns a person who is not signed in."""
    person = await people(f"{site.url}/static/icon.svg")
    person.expected = [SIGNED_OUT, FORBIDDEN, "favicon.ico"]
    await person.page.goto(site.url + path)
    return person


async def test_a_person_signs_in_talks_and_signs_out(
    people: SitDown, site: Server, issuer: OpenIdIssuer, tmp_path: Path
) -> None:
    issuer.person = {"sub": "ada", "name": "Ada Lovelace", "groups": ["people"]}
    ada = await visitor(people, site, "/")
    link = ada.page.get_by_role("link", name="Sign in at Example")
    await expect(link).to_be_visible()
    await ada.page.screenshot(path=tmp_path / "sign-in.png")
    await link.click()
    await ada.ready()
    await expect(ada.page.locator("#who")).to_have_text("Ada Lovelace")
    await expect(ada.page.locator("#ask-token")).to_be_hidden()
    await ada.say("Hello?")
    await ada.sees_end()
    await ada.sees("Hello.")
    await ada.page.fill("#words", "A draft that nobody else reads")
    chat = ada.chat
    await ada.reload()  # a reload keeps the cookie and the address
    await ada.sees("Hello.")
    assert ada.chat == chat
    await expect(ada.page.locator("#words")).to_have_value("A draft that nobody else reads")
    await ada.page.screenshot(path=tmp_path / "signed-in.png")
    assert await copies(ada) == [f"path {chat}"]
    await ada.press("Sign out")
    await expect(link).to_be_visible()  # the issuer has ended its session, and redirected the browser
    assert [sent["client_id"] for sent in issuer.ended] == [CLIENT]
    assert await copies(ada) == []
    assert await ada.page.evaluate("Object.keys(localStorage).filter((key) => key.includes('turnstream.of'))") == []
    assert "turnstream_session" not in {cookie.get("name") for cookie in await ada.context.cookies()}
    issuer.person = {"sub": "bob", "groups": ["people"]}
    await link.click()
    await ada.ready()
    await expect(ada.page.locator("#who")).to_have_text("bob")
    await expect(ada.page.locator("#words")).to_have_value("")
    await expect(ada.page.locator("#no-chats")).to_be_visible()


async def test_a_stream_continues_after_the_session_is_renewed(
    people: SitDown, site: Server, issuer: OpenIdIssuer
) -> None:
    """The page uses the session instead of a token that was rejected."""
    issuer.person = {"sub": "ada", "name": "Ada", "groups": ["people"]}
    ada = await visitor(people, site, "/")
    await ada.page.fill("#ask-token input[name=token]", "ts_wrong")
    await ada.page.keyboard.press("Enter")
    await expect(ada.page.locator("#why-token")).to_contain_text("is unknown here")
    await ada.page.get_by_role("link", name="Sign in at Example").click()
    await ada.ready()
    await expect(ada.page.locator("#who")).to_have_text("Ada")
    model = site.scripts.model(message_of(text("As ", "it streams.")))
    made = await ada.page.evaluate(
        "model => fetch('api/chats', {method: 'POST', headers: {'content-type': 'application/json'},"
        " body: JSON.stringify({settings: {model}})}).then((answer) => answer.json())",
        model,
    )
    await ada.open(made["id"])
    await ada.say("Stream")
    await ada.sees_end()
    await ada.sees("As it streams.")


async def test_an_operator_signs_in_on_the_page_for_operators(
    people: SitDown, site: Server, issuer: OpenIdIssuer, tmp_path: Path
) -> None:
    issuer.person = {"sub": "olga", "groups": ["ops"]}
    olga = await visitor(people, site, "/admin")
    await olga.page.get_by_role("link", name="Sign in at Example").click()
    await olga.page.wait_for_url(f"{site.url}/admin")
    await expect(olga.page.get_by_role("heading", name="Replicas")).to_be_visible()
    await expect(olga.page.locator("#ask-token")).to_be_hidden()
    await olga.page.screenshot(path=tmp_path / "operator.png")
