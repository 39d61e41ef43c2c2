"""Sessions: requests with the cookie from other pages and browsers, and the end of a session."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from tests.extensions.login.conftest import ServeLogin
from tests.support.http_server import Server
from tests.support.issuer import issuing
from tests.support.openid_issuer import CookieBrowser, OpenIdIssuer
from turnstream.libraries.audit_entries import newest_entries
from turnstream.libraries.erasure.erasure import erase_owner
from turnstream.storage.database import Statement

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGE = Statement("UPDATE login_sessions SET last_used_at = last_used_at - make_interval(secs => :seconds) RETURNING id")
END = Statement("UPDATE login_sessions SET expires_at = now() RETURNING id")
READ = Statement("SELECT * FROM login_sessions")


# --- other pages, other browsers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"Sec-Fetch-Site": "same-origin"}, 201),
        ("POST", {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, 401),
        ("POST", {"Sec-Fetch-Site": "same-site", "Origin": "https://neighbour.example"}, 401),
        ("POST", {"Origin": "null"}, 401),
        ("POST", {"Origin": "ITS OWN"}, 201),  # Over plain HTTP, browsers do not send Sec-Fetch-Site.
        ("POST", {}, 401),  # Without either header, the server cannot tell which page sent the request.
        ("GET", {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, 401),
        ("GET", {"Sec-Fetch-Site": "none"}, 200),  # The user typed the address.
        ("POST", {"Origin": "https://mine.example"}, 401),  # Pages of an allowed origin must send tokens, not cookies.
    ],
)
async def test_a_cookie_counts_for_pages_of_the_server_alone(
    serve: ServeLogin, method: str, headers: Mapping[str, str], status: int
) -> None:
    async with serve(cors_origins="https://mine.example", cors_credentials=True) as site:
        async with CookieBrowser(site.url) as browser:
            await browser.sign_in()
            cookie = {"Cookie": f"turnstream_session={browser.cookie()}"}
        async with httpx2.AsyncClient(base_url=site.url) as page:
            json: dict[str, str] | None = {} if method == "POST" else None
            sent = {name: site.url if value == "ITS OWN" else value for name, value in headers.items()}
            answer = await page.request(method, "/api/chats", headers={**sent, **cookie}, json=json)
            assert answer.status_code == status
            ended = await page.delete("/api/session", headers={"Origin": "https://evil.example", **cookie})
            assert ended.status_code == 401


async def test_a_session_is_never_one_that_the_browser_brought(browser: CookieBrowser, site: Server) -> None:
    """Session fixation: before the login, an attacker has set a cookie in the browser."""
    planted = "x" * 43
    browser.http.cookies.set("turnstream_session", planted, domain="127.0.0.1")
    assert await browser.status() == 401
    await browser.sign_in()
    first = browser.cookie()
    assert first != planted
    await browser.sign_in()
    assert browser.cookie() not in {first, planted}
    async with CookieBrowser(site.url) as other:
        for old in (planted, str(first)):
            other.http.cookies.set("turnstream_session", old)
            assert await other.status() == 401
    rows = await site.services.storage.database.rows(READ)
    assert len(rows) == 1


@pytest.mark.parametrize("cookie", ["", "x", "x" * 43, "x" * 10_000, "ä" * 43, "'; DROP TABLE chats; --"])
async def test_a_forged_cookie_opens_nothing(site: Server, cookie: str) -> None:
    async with httpx2.AsyncClient(base_url=site.url) as page:
        headers = [(b"cookie", f"turnstream_session={cookie}".encode("latin-1")), (b"sec-fetch-site", b"same-origin")]
        assert (await page.get("/api/chats", headers=headers)).status_code == 401


async def test_the_stored_digest_does_not_open_a_session(site: Server, browser: CookieBrowser) -> None:
    await browser.sign_in()
    row = await site.services.storage.database.row(READ)
    assert row is not None
    secret = str(browser.cookie())
    assert not any(secret in str(value) for value in dict(row).values())
    for stored in (row["hash"].hex(), row["id"].hex, str(row["id"])):
        async with CookieBrowser(site.url) as thief:
            thief.http.cookies.set("turnstream_session", stored)
            assert await thief.status() == 401
    # the value of a cookie must not work as a bearer token
    async with httpx2.AsyncClient(base_url=site.url) as program:
        for sent in (secret, f"session:{row['id']}"):
            answer = await program.get("/api/chats", headers={"Authorization": f"Bearer {sent}"})
            assert answer.status_code == 401


async def test_a_token_counts_before_a_cookie(site: Server, browser: CookieBrowser) -> None:
    await browser.sign_in()
    headers = {"Authorization": f"Bearer {await site.token('bob')}"}
    assert (await browser.http.get("/api/me", headers=headers)).json()["owner"] == "bob"
    ended = await browser.http.delete("/api/session", headers=headers)
    assert ended.json() == {"ended": None, "logout_url": None}
    assert await browser.status() == 200
    assert (await browser.http.get("/api/chats", headers={"Authorization": "Bearer x"})).status_code == 401


async def test_a_session_makes_no_token_that_would_outlast_it(browser: CookieBrowser) -> None:
    await browser.sign_in()
    made = await browser.http.post("/api/tokens", json={})
    assert (made.status_code, "A session creates no tokens" in made.json()["detail"]) == (403, True)


async def test_cookies_over_tls_are_secure_and_no_neighbour_can_set_them(serve: ServeLogin) -> None:
    async with serve(login_url="https://chat.example/sub") as site, httpx2.AsyncClient(base_url=site.url) as page:
        started = await page.get("/login")
        (kept,) = started.headers.get_list("set-cookie")
        assert kept.startswith("__Host-turnstream_login_")
        for attribute in ("HttpOnly", "Max-Age=600", "Path=/", "SameSite=lax", "Secure"):
            assert attribute in kept
        assert "Domain" not in kept
        assert (await page.get("/login", headers={"Cookie": "a=b"})).status_code == 303


async def test_the_cookies_of_a_session_have_their_attributes(browser: CookieBrowser) -> None:
    answer = await browser.sign_in()
    cookies = {each.partition("=")[0]: each for each in answer.headers.get_list("set-cookie")}
    assert "HttpOnly" in cookies["turnstream_session"]
    assert "SameSite=lax" in cookies["turnstream_session"]
    assert "Max-Age=604800" in cookies["turnstream_session"]
    assert "HttpOnly" not in cookies["turnstream_signed_in"]
    assert "Path=/api/session;" in cookies["turnstream_id_token"]
    assert "HttpOnly" in cookies["turnstream_id_token"]
    assert answer.headers["cache-control"] == "no-store"


async def test_a_browser_keeps_a_few_logins_at_a_time(browser: CookieBrowser) -> None:
    urls = [await browser.begin() for _ in range(7)]
    assert len([name for name in browser.http.cookies if name.startswith("turnstream_login_")]) == 4
    assert (await browser.http.get(urls[0])).status_code == 403
    assert (await browser.http.get(urls[-2])).status_code == 303


# --- the end of a session --------------------------------------------------------------------------------------------


async def test_a_session_ends_when_it_is_idle(site: Server, browser: CookieBrowser) -> None:
    database = site.services.storage.database
    await browser.sign_in()
    await database.row(AGE, seconds=43_000)
    assert await browser.status() == 200  # this request extends the session
    await database.row(AGE, seconds=43_000)
    assert await browser.status() == 200
    await database.row(AGE, seconds=43_201)
    answer = await browser.http.get("/api/chats")
    assert (answer.status_code, "session of this browser has ended" in answer.json()["detail"]) == (401, True)


async def test_an_open_stream_is_no_use(site: Server, browser: CookieBrowser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.api.streams.watch.PAUSE", 0.05)
    database = site.services.storage.database
    await browser.sign_in()
    async with browser.http.stream("GET", "/api/stream") as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        await database.row(AGE, seconds=43_201)
        async with asyncio.timeout(60):
            assert "event: access_ended" in [line async for line in lines]


async def test_a_session_ends_after_its_longest_life(site: Server, browser: CookieBrowser) -> None:
    await browser.sign_in()
    await site.services.storage.database.row(END)
    assert await browser.status() == 401
    assert (await browser.http.get("/api/session")).json()["session"] is None
    await browser.sign_in()  # a new login removes the session that has ended
    assert len(await site.services.storage.database.rows(READ)) == 1


async def test_settings_take_scopes_at_once_and_issuers_with_their_sessions(
    serve: ServeLogin, issuer: OpenIdIssuer
) -> None:
    async with serve() as site, CookieBrowser(site.url) as browser:
        await browser.sign_in()
        cookie = str(browser.cookie())
    changes: list[tuple[dict[str, Any], int, int]] = [
        ({"login_scopes": "read"}, 200, 403),
        ({"login_scopes": "read, chat, approve, admin"}, 200, 201),
    ]
    for settings, reading, writing in changes:
        async with serve(**settings) as site, CookieBrowser(site.url) as browser:
            browser.http.cookies.set("turnstream_session", cookie)
            assert await browser.status() == reading
            assert (await browser.http.post("/api/chats", json={})).status_code == writing
            assert "admin" not in (await browser.http.get("/api/me")).json()["scopes"]
    async with issuing() as another, serve(login_issuer=another.url) as site, CookieBrowser(site.url) as browser:
        browser.http.cookies.set("turnstream_session", cookie)
        assert await browser.status() == 401


async def test_owners_list_and_revoke_their_sessions(serve: ServeLogin, issuer: OpenIdIssuer) -> None:
    async with serve(self_service=True) as site, CookieBrowser(site.url) as desk, CookieBrowser(site.url) as phone:
        await desk.sign_in()
        await phone.sign_in()
        listed = (await desk.http.get("/api/account/credentials")).json()["credentials"]
        assert [(each["kind"], each["name"], each["current"]) for each in listed] == [
            ("session", "Ada", False),
            ("session", "Ada", True),
        ]
        async with CookieBrowser(site.url) as eve:
            issuer.person = {"sub": "eve"}
            await eve.sign_in()
            stolen = await eve.http.delete(f"/api/account/credentials/{listed[0]['id']}")
            assert stolen.status_code == 404
        revoked = await desk.http.delete(f"/api/account/credentials/{listed[0]['id']}")
        assert revoked.json() == {"revoked": listed[0]["id"]}
        assert (await phone.status(), await desk.status()) == (401, 200)
        entries = await newest_entries(site.services.storage.database, "ada", "session.ended", 1, 10)
        assert [each.actor for each in entries] == [f"session:{listed[1]['id']}"]


async def test_an_erasure_ends_sessions(site: Server, browser: CookieBrowser, issuer: OpenIdIssuer) -> None:
    await browser.sign_in()
    async with CookieBrowser(site.url) as bob:
        issuer.person = {"sub": "bob"}
        await bob.sign_in()
        erased = await erase_owner(site.services.storage.database, "ada", lambda _: 0, 0)
        assert erased["login_sessions"] == 1
        assert (await browser.status(), await bob.status()) == (401, 200)


# --- sign-outs by the issuer -----------------------------------------------------------------------------------------


async def test_the_issuer_ends_a_session_or_all_of_a_person(
    site: Server, issuer: OpenIdIssuer, browser: CookieBrowser
) -> None:
    async with CookieBrowser(site.url) as phone, CookieBrowser(site.url) as bob:
        await browser.sign_in()
        issuer.forged = {"sid": "phone"}
        await phone.sign_in()
        issuer.forged = {"sid": "of bob"}
        issuer.person = {"sub": "bob"}
        await bob.sign_in()
        sessions = (browser, phone, bob)

        async def end(**claims: Any) -> list[int]:
            sent = {"logout_token": issuer.logout_token(**claims)}
            answer = await browser.http.post("/login/backchannel/main", data=sent)
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
            return [await each.status() for each in sessions]

        assert await end(sid="desk", sub="ada") == [401, 200, 200]
        assert await end(sid=None, sub="ada") == [401, 401, 200]
        assert await end(sid="of bob", sub=None) == [401, 401, 401]
        entries = await newest_entries(site.services.storage.database, "bob", "session.ended", 1, 1)
        assert entries[0].actor == f"issuer:{issuer.url}"


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "shop"},
        {"iss": "https://evil.example"},
        {"events": {}},
        {"events": None},
        {"nonce": "x"},
        {"iat": 1},
        {"iat": "now"},
        {"sid": None, "sub": None},
    ],
)
async def test_a_forged_token_ends_nothing(
    site: Server, issuer: OpenIdIssuer, browser: CookieBrowser, claims: dict[str, Any]
) -> None:
    await browser.sign_in()
    sent = {"logout_token": issuer.logout_token(**claims)}
    answer = await browser.http.post("/login/backchannel/main", data=sent)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")
    assert await browser.status() == 200


async def test_a_request_that_is_none_of_an_issuer_ends_nothing(issuer: OpenIdIssuer, browser: CookieBrowser) -> None:
    await browser.sign_in()
    issuer.add_key("strange", published=False)
    issuer.signing_key = "strange"
    bodies: list[tuple[str, dict[str, Any], int]] = [
        ("main", {}, 400),
        ("main", {"logout_token": ["a", "b"]}, 400),
        ("main", {"logout_token": "x"}, 400),
        ("main", {"logout_token": "x" * 200_000}, 413),
        ("main", {"logout_token": issuer.logout_token()}, 400),
        ("main", {str(each): "x" for each in range(20)}, 400),
        ("none", {"logout_token": "x"}, 400),
    ]
    for name, form, status in bodies:
        answer = await browser.http.post(f"/login/backchannel/{name}", data=form)
        assert answer.status_code == status, form
    assert await browser.status() == 200
