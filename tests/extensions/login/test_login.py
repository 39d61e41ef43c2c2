"""A login from its start to its end, and forged values at each step."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import httpx2
import jwt
import pytest

from tests.extensions.login.conftest import ServeLogin
from tests.support.http_server import Server
from tests.support.openid_issuer import CLIENT, CookieBrowser, OpenIdIssuer, providing, query_of
from turnstream.libraries.audit_entries import newest_entries
from turnstream.storage.database import Statement

pytestmark = pytest.mark.asyncio(loop_scope="session")


def pending_of(browser: CookieBrowser) -> list[str]:
    return [name for name in browser.http.cookies if name.startswith("turnstream_login_")]


async def refused(answer: httpx2.Response, browser: CookieBrowser, words: str, status: int = 403) -> None:
    """Asserts that nobody is signed in, and that the page contains the reason."""
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert "Sign in again" in answer.text
    assert browser.cookie() is None
    assert await browser.status() == 401


# --- a complete login ------------------------------------------------------------------------------------------------


async def test_a_person_signs_in_works_and_signs_out(
    site: Server, issuer: OpenIdIssuer, browser: CookieBrowser
) -> None:
    assert await browser.status() == 401
    before = (await browser.http.get("/api/session")).json()
    assert before["session"] is None
    assert [each["name"] for each in before["issuers"]] == ["main"]
    answer = await browser.sign_in("#0199")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{site.url}/#0199")
    assert pending_of(browser) == []
    made = await browser.http.post("/api/chats", json={"title": "Mine"})
    assert made.status_code == 201
    session = (await browser.http.get("/api/session")).json()["session"]
    assert (session["owner"], session["name"], session["issuer"]) == ("ada", "Ada", issuer.url)
    me = (await browser.http.get("/api/me")).json()
    assert (me["owner"], me["scopes"]) == ("ada", ["read", "chat", "approve"])
    cookie = browser.cookie()
    ended = (await browser.http.delete("/api/session")).json()
    assert ended["ended"] == session["id"]
    sent = query_of(ended["logout_url"])
    assert (sent["client_id"], sent["post_logout_redirect_uri"]) == (CLIENT, f"{site.url}/")
    assert sent["id_token_hint"].count(".") == 2
    assert browser.cookie() is None
    browser.http.cookies.set("turnstream_session", str(cookie))  # a copy of the cookie from before the logout
    assert await browser.status() == 401
    entries = await newest_entries(site.services.storage.database, "ada", "session.", 1, 10)
    assert [each.kind for each in entries] == ["session.ended", "session.created"]
    assert {each.actor for each in entries} == {f"session:{session['id']}"}


async def test_the_owner_is_the_one_that_a_token_of_the_issuer_names(serve: ServeLogin, issuer: OpenIdIssuer) -> None:
    options = {"jwt_issuer": issuer.url, "jwt_audience": "turnstream", "login_prefixes": True}
    async with serve(**options) as site, CookieBrowser(site.url) as browser:
        await browser.sign_in()
        chat = (await browser.http.post("/api/chats", json={})).json()["id"]
        async with httpx2.AsyncClient(base_url=site.url) as program:
            bearer = {"Authorization": f"Bearer {issuer.token('first')}"}
            chats = (await program.get("/api/chats", headers=bearer)).json()["chats"]
            assert [each["id"] for each in chats] == [chat]
        assert (await browser.http.get("/api/me")).json()["owner"] == "jwt:ada"


async def test_two_replicas_share_a_session(serve: ServeLogin, browser: CookieBrowser) -> None:
    await browser.sign_in()
    async with serve() as other, CookieBrowser(other.url) as elsewhere:
        elsewhere.http.cookies.set("turnstream_session", str(browser.cookie()))
        assert await elsewhere.status() == 200
        await browser.http.delete("/api/session")
        assert await elsewhere.status() == 401


async def test_a_client_without_a_secret_signs_in_by_pkce_alone(serve: ServeLogin, issuer: OpenIdIssuer) -> None:
    issuer.secret = None
    async with serve(login_client_secret=None) as site, CookieBrowser(site.url) as browser:
        assert (await browser.sign_in()).status_code == 303


async def test_claims_of_the_userinfo_endpoint_count_where_the_id_token_has_none(
    issuer: OpenIdIssuer, serve: ServeLogin
) -> None:
    issuer.userinfo = {"sub": "ada", "groups": ["staff"], "name": "Somebody else"}
    async with serve(login_scopes="none", login_roles="staff=read") as site, CookieBrowser(site.url) as browser:
        await browser.sign_in()
        session = (await browser.http.get("/api/session")).json()["session"]
        assert (session["scopes"], session["name"]) == (["read"], "Ada")  # the claims come from the signed ID token
        issuer.userinfo["sub"] = "eve"
        async with CookieBrowser(site.url) as other:
            await refused(await other.sign_in(), other, "claims of another person")


async def test_streams_take_the_cookie_and_end_with_the_session(
    site: Server, browser: CookieBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.api.streams.watch.PAUSE", 0.05)
    await browser.sign_in()
    async with browser.http.stream("GET", "/api/stream") as stream:
        assert stream.status_code == 200
        lines = stream.aiter_lines()
        await anext(lines)
        await browser.http.delete("/api/session")
        seen = [line async for line in lines]
    assert "event: access_ended" in seen


# --- groups ----------------------------------------------------------------------------------------------------------


async def test_groups_give_scopes_plan_and_roles(serve: ServeLogin, issuer: OpenIdIssuer) -> None:
    options = {
        "login_scopes": "read",
        "login_roles": "staff=chat approve",
        "login_plans": "gold=rich, staff=pro, guest=free",
    }
    issuer.person = {"sub": "ada", "groups": ["staff", "guest"]}
    async with serve(**options) as site, CookieBrowser(site.url) as browser:
        await browser.sign_in()
        assert (await browser.http.get("/api/me")).json()["scopes"] == ["read", "chat", "approve"]
        row = await site.services.storage.database.row(Statement("SELECT plan, roles FROM login_sessions"))
        assert row is not None
        assert (row["plan"], row["roles"]) == ("pro", ["guest", "staff"])


@pytest.mark.extensions("admin")
async def test_an_operator_may_operate_and_reads_no_content(serve: ServeLogin, issuer: OpenIdIssuer) -> None:
    options = {"login_scopes": "none", "login_roles": "people=read chat approve, ops=admin"}
    async with serve(**options) as site, CookieBrowser(site.url) as ada, CookieBrowser(site.url) as operator:
        issuer.person = {"sub": "ada", "groups": ["people"]}
        await ada.sign_in()
        chat = (await ada.http.post("/api/chats", json={"title": "Secret"})).json()["id"]
        assert await ada.status("/api/admin/overview") == 403
        issuer.person = {"sub": "olga", "groups": ["ops"]}
        answer = await operator.sign_in("#0199")
        assert answer.headers["location"] == f"{site.url}/admin"
        shown = await operator.http.get("/api/admin/overview")
        assert shown.status_code == 200
        assert "Secret" not in shown.text
        for path in ("/api/chats", f"/api/chats/{chat}", f"/api/chats/{chat}/turns", "/api/stream", "/api/waiting"):
            assert await operator.status(path) == 403, path
        made = await operator.http.post("/api/tokens", json={"owner": "ada", "scopes": ["read"]})
        assert made.status_code == 403
        assert (await operator.http.delete("/api/session")).status_code == 200


async def test_somebody_without_a_group_of_the_server_is_refused(serve: ServeLogin, issuer: OpenIdIssuer) -> None:
    issuer.person = {"sub": "ada", "groups": ["others"]}
    async with serve(login_scopes="none", login_roles="staff=read") as site, CookieBrowser(site.url) as browser:
        await refused(await browser.sign_in(), browser, "none of your groups")


# --- forged values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forged", "words"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"aud": "shop"}, "aud"),
        ({"aud": None}, "aud"),
        ({"aud": ["turnstream", "shop"], "azp": "shop"}, "azp"),
        ({"iss": "https://issuer.example"}, "iss"),
        ({"exp": 1}, "exp"),
        ({"exp": "tomorrow"}, "times are no numbers"),
        ({"iat": 99_999_999_999}, "in the future"),
        ({"nbf": 99_999_999_999}, "not yet valid"),
        ({"sub": None}, "of nobody"),
        ({"sub": 7}, "of nobody"),
        ({"sub": ""}, "of nobody"),
        ({"sub": "a\u200bda"}, "invisible"),
        ({"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}, "at_hash"),
    ],
)
async def test_a_forged_id_token_opens_no_session(
    issuer: OpenIdIssuer, browser: CookieBrowser, forged: dict[str, Any], words: str
) -> None:
    issuer.forged = forged
    await refused(await browser.sign_in(), browser, words)


@pytest.mark.parametrize("fault", ["unknown key", "no signature", "shared key", "another key", "no token", "text"])
async def test_an_id_token_needs_a_signature_of_the_issuer(
    issuer: OpenIdIssuer, browser: CookieBrowser, fault: str
) -> None:
    url = await browser.begin()
    (query,) = issuer.codes.values()
    issuer.add_key("strange", published=False)
    claims = jwt.decode(issuer.id_token(query["nonce"]), options={"verify_signature": False})
    match fault:
        case "unknown key":
            issuer.signing_key = "strange"
        case "no signature":
            issuer.told = {"id_token": jwt.encode(claims, "", "none")}
        case "shared key":
            header = {"kid": "first"}
            issuer.told = {"id_token": jwt.encode(claims, "a secret of thirty-two characters", "HS256", headers=header)}
        case "another key":
            strange = issuer.keys["strange"][1]
            issuer.told = {"id_token": jwt.encode(claims, strange, "RS256", headers={"kid": "first"})}
        case "no token":
            issuer.told = {"id_token": None}
        case _:
            issuer.told = {"id_token": "a.b.c"}
    await refused(await browser.http.get(url), browser, issuer.url.partition("//")[2])


async def test_a_state_of_another_browser_is_refused(site: Server, browser: CookieBrowser) -> None:
    """Login CSRF: an attacker leads the browser of another user into the attacker's session."""
    async with CookieBrowser(site.url) as attacker:
        url = await attacker.begin()
    await refused(await browser.http.get(url), browser, "not begun in this browser")


@pytest.mark.parametrize("change", ["state", "verifier", "nonce", "late", "garbage"])
async def test_the_cookies_of_a_browser_must_fit_its_limit(browser: CookieBrowser, change: str) -> None:
    url = await browser.begin()
    (name,) = pending_of(browser)
    kept = browser.http.cookies[name]
    issuer, state, nonce, verifier, to, at = json.loads(urlsafe_b64decode(kept + "=" * (-len(kept) % 4)))
    values = [
        issuer,
        "x" * 43 if change == "state" else state,
        "x" if change == "nonce" else nonce,
        "x" * 64 if change == "verifier" else verifier,
        to,
        at - 601 if change == "late" else at,
    ]
    text = "%%%" if change == "garbage" else urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
    browser.http.cookies.clear()
    browser.http.cookies.set(name, text)
    await refused(await browser.http.get(url), browser, "login" if change != "nonce" else "nonce")


async def test_a_callback_counts_once(browser: CookieBrowser, issuer: OpenIdIssuer, site: Server) -> None:
    url = await browser.begin()
    copies, (asked,) = dict(browser.http.cookies), list(issuer.codes.values())
    assert (await browser.http.get(url)).status_code == 303
    async with CookieBrowser(site.url) as thief:
        await refused(await thief.http.get(url), thief, "completed already")
        for name, value in copies.items():  # the thief has the cookie too, but the provider accepts a code only once
            thief.http.cookies.set(name, value)
        await refused(await thief.http.get(url), thief, "invalid_grant")
        # The thief also has a second code that was issued for the same request.
        for name, value in copies.items():
            thief.http.cookies.set(name, value)
        issuer.codes["second"] = asked
        again = url.replace(query_of(url)["code"], "second")
        await refused(await thief.http.get(again), thief, "completed already")


@pytest.mark.parametrize(
    "query",
    [
        "",
        "state=x",
        "code=x",
        "state=x&code=y&error=z",
        "state=x&state=y&code=z",
        "state=x&code=%00",
        f"state={'x' * 5000}&code=y",
    ],
)
async def test_a_callback_without_its_parameters_is_refused(browser: CookieBrowser, query: str) -> None:
    await refused(await browser.http.get(f"/login/callback/main?{query}"), browser, "address", 400)


async def test_the_refusal_of_the_provider_is_shown(browser: CookieBrowser, issuer: OpenIdIssuer) -> None:
    issuer.person = None
    answer = await browser.sign_in()
    await refused(answer, browser, "access_denied")
    assert pending_of(browser) == []
    issuer.answered = {"error": "<script>alert(1)</script>"}
    assert "<script>" not in (await browser.sign_in()).text


@pytest.mark.parametrize(
    "to",
    ["https://evil.example", "//evil.example", "/admin", "\\evil", "admin?x", "#x\r\nSet-Cookie: a=b", "%2f%2fevil"],
)
async def test_a_login_leads_to_pages_of_the_server_alone(browser: CookieBrowser, to: str) -> None:
    answer = await browser.http.get("/login", params={"to": to})
    await refused(answer, browser, "`to` must be", 400)


async def test_a_login_needs_a_provider_that_answers(browser: CookieBrowser, issuer: OpenIdIssuer) -> None:
    issuer.is_away = True
    await refused(await browser.http.get("/login"), browser, "Nobody can sign in", 502)
    await refused(await browser.http.get("/login?issuer=x"), browser, "`issuer` must be one of main", 400)


async def test_a_provider_that_sends_without_end_is_cut_off(browser: CookieBrowser, issuer: OpenIdIssuer) -> None:
    issuer.told = {"more": "x" * 600_000}
    await refused(await browser.sign_in(), browser, "DecodingError")


# --- several issuers -------------------------------------------------------------------------------------------------


async def test_issuers_are_distinguished(serve: ServeLogin, issuer: OpenIdIssuer, tmp_path: Any) -> None:
    async with providing() as other:
        file = tmp_path / "issuers.toml"
        file.write_text(f'[issuer.other]\nissuer = "{other.url}"\nclient_id = "{CLIENT}"\ntitle = "Other"\n')
        other.secret = None
        options = {"login_issuers_file": file, "login_prefixes": True}
        async with serve(**options) as site, CookieBrowser(site.url) as browser:
            other.redirect_uris = [f"{site.url}/login/callback/other"]
            choice = await browser.http.get("/login?to=%23x")
            assert (choice.status_code, "Other" in choice.text) == (200, True)
            await browser.sign_in(issuer="other")
            assert (await browser.http.get("/api/me")).json()["owner"] == "other:ada"
            async with CookieBrowser(site.url) as second:
                await second.sign_in(issuer="main")
                assert (await second.http.get("/api/me")).json()["owner"] == "jwt:ada"
            # A mix-up attack: the answer of one issuer is sent to the callback of the other issuer.
            async with CookieBrowser(site.url) as victim:
                url = (await victim.begin(issuer="other")).replace("/callback/other", "/callback/main")
                await refused(await victim.http.get(url), victim, "not begun in this browser")
                url = (await victim.begin(issuer="main")).replace("/callback/main", "/callback/other")
                await refused(await victim.http.get(url), victim, "not begun in this browser")
            # An issuer names the other issuer, or omits its own name.
            for answered in ({"iss": issuer.url}, {"iss": ""}):
                other.answered = answered
                async with CookieBrowser(site.url) as victim:
                    await refused(await victim.sign_in(issuer="other"), victim, "not of Other")
            assert other.refused == issuer.refused == []


async def test_the_choice_needs_no_issuer_that_names_itself(
    serve: ServeLogin, issuer: OpenIdIssuer, browser: CookieBrowser
) -> None:
    issuer.names_itself = False
    assert (await browser.sign_in()).status_code == 303
