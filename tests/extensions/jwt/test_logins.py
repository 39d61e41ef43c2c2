"""External logins: JSON web tokens from an issuer over real HTTP, and a proxy that authenticates itself."""

import asyncio
import base64
import json
import time
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.integration.api.test_identity import request_with
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.issuer import AUDIENCE, TestIssuer, issuing
from tests.support.openapi_document import Document
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError, Unauthorized
from turnstream.libraries.audit_entries import newest_entries
from turnstream.libraries.logins import identity_from
from turnstream.main import running
from turnstream.storage.database import connect

pytestmark = [pytest.mark.extensions("auth_proxy"), pytest.mark.asyncio(loop_scope="session")]

SECRET = "sixteen characters"


@pytest_asyncio.fixture(loop_scope="session")
async def issuer() -> AsyncIterator[TestIssuer]:
    async with issuing() as issuer:
        yield issuer


@pytest_asyncio.fixture(loop_scope="session")
async def site(issuer: TestIssuer, database_url: str) -> AsyncIterator[Server]:
    async with serving(
        database_url,
        host="0.0.0.0",
        jwt_issuer=issuer.url,
        jwt_audience=f"other, {AUDIENCE}",
        jwt_roles_claim="realm_access.roles",
        jwt_plan_claim="https://example.org/plan",
        jwt_leeway=5,
        login_scopes="read",
        login_roles="writer=chat approve, boss=read admin",
        proxy_secret=SECRET,
        proxy_roles_header="X-Groups",
    ) as server:
        yield server


async def status_with(site: Server, document: Document, token: str, path: str = "/api/chats") -> int:
    async with Client(site.url, document, token) as client:
        return (await client.get(path)).status_code


async def refusal_of(site: Server, document: Document, token: str) -> str:
    async with Client(site.url, document, token) as client:
        answer = await client.get("/api/chats")
        assert answer.status_code == 401
        detail: str = answer.json()["detail"]
        return detail


# --- tokens of an issuer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_token_of_the_issuer_gives_access_to_its_subject(
    site: Server, issuer: TestIssuer, document: Document, algorithm: str
) -> None:
    issuer.add_key("mine", algorithm)
    writer: dict[str, Any] = {"realm_access": {"roles": ["writer", "unknown"]}}
    async with Client(site.url, document, issuer.token("mine", **writer)) as ada:
        await ada.chat(title="Mine")
    # another token for the same user, issued later
    async with Client(site.url, document, issuer.token("mine")) as reader:
        assert [chat["title"] for chat in (await reader.json("GET", "/api/chats"))["chats"]] == ["Mine"]
        assert (await reader.post("/api/chats", json={})).status_code == 403
    async with Client(site.url, document, issuer.token("mine", sub="bob")) as bob:
        assert (await bob.json("GET", "/api/chats"))["chats"] == []
    assert issuer.requests == ["/.well-known/openid-configuration", "/keys"]


async def test_a_plan_and_more_scopes_come_from_claims(site: Server, issuer: TestIssuer) -> None:
    claims: dict[str, Any] = {
        "realm_access": {"roles": "boss writer"},
        "https://example.org/plan": "gold",
        "jti": "one",
    }
    identity = await site.services.authenticator.identity_of(request_with(issuer.token("first", **claims)))
    assert (identity.owner, identity.plan, identity.credential) == ("ada", "gold", "jwt:one")
    assert identity.scopes == {"read", "chat", "approve", "admin"}


@pytest.mark.parametrize(("claims", "actor"), [({}, "owner:ada"), ({"jti": "one"}, "jwt:one")], ids=["owner", "id"])
async def test_a_login_is_the_actor_of_its_changes(
    site: Server, issuer: TestIssuer, document: Document, claims: dict[str, Any], actor: str
) -> None:
    token = issuer.token("first", realm_access={"roles": "writer"}, **claims)
    async with Client(site.url, document, token) as ada:
        await ada.json("POST", "/api/tokens", json={"scopes": ["read"]})
    async with connect(site.database_url, size=1) as database:
        (entry,) = await newest_entries(database, "ada", "token.exchanged", 1, 1)
    assert entry.actor == actor


async def test_names_that_look_the_same_are_one_owner(site: Server, issuer: TestIssuer) -> None:
    for name in ("Zoe\u0308", " Zo\u00eb "):
        token = issuer.token("first", sub=name, aud=["shop", AUDIENCE])
        assert (await site.services.authenticator.identity_of(request_with(token))).owner == "Zo\u00eb"


async def test_with_prefixes_no_login_is_the_owner_of_a_stored_token() -> None:
    identity = identity_from(" local ", frozenset({"read"}), "jwt:")
    assert identity.owner == "jwt:local"
    with pytest.raises(Unauthorized):
        identity_from(" ", frozenset({"read"}), "jwt:")


def without_signature(issuer: TestIssuer) -> str:
    return jwt.encode({"iss": issuer.url, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 60}, "", "none")


def signed_by_the_public_key(issuer: TestIssuer) -> str:
    """Returns a token for the attack by key confusion: an HMAC token whose secret is the text of the public key."""
    _, private = issuer.keys["first"]
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "ada", "exp": int(time.time()) + 60}
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in ({"alg": "HS256", "typ": "JWT", "kid": "first"}, claims)
    )
    signature = jwt.get_algorithm_by_name("HS256").sign(f"{head}.{body}".encode(), pem)
    return f"{head}.{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def of_another_algorithm(issuer: TestIssuer) -> str:
    """Returns a token that names another algorithm than the issuer's key. The algorithm that the issuer names must
    apply.
    """
    issuer.add_key("elliptic", "ES256", published=False)
    _, private = issuer.keys["elliptic"]
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "ada", "exp": int(time.time()) + 60}
    return jwt.encode(claims, private, "ES256", headers={"kid": "first"})


def of_a_stranger(issuer: TestIssuer) -> str:
    stranger = TestIssuer()
    stranger.url = issuer.url
    stranger.add_key("first")
    return stranger.token("first")


def with_a_claim_twice(issuer: TestIssuer) -> str:
    _, private = issuer.keys["first"]
    head = {"alg": "RS256", "typ": "JWT", "kid": "first"}
    claims = json.dumps({"iss": issuer.url, "aud": AUDIENCE, "exp": int(time.time()) + 60, "sub": "ada"})
    parts = [json.dumps(head), claims.replace('"sub"', '"sub": "bob", "sub"')]
    signed = ".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts)
    signature = jwt.get_algorithm_by_name("RS256").sign(signed.encode(), private)
    return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def of_a_short_key(issuer: TestIssuer) -> str:
    issuer.keys["short"] = "RS256", generate_private_key(65537, 1024)
    issuer.published.append("short")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library warns that the key is short
        return issuer.token("short")


BAD: dict[str, tuple[Callable[[TestIssuer], str], str]] = {
    "alg none": (without_signature, "signed by 'none'; the server takes ES256, EdDSA, RS256"),
    "key confusion": (signed_by_the_public_key, "signed by 'HS256'"),
    "another algorithm": (of_another_algorithm, "its key is not one for ES256"),
    "forged signature": (of_a_stranger, "Signature verification failed"),
    "another audience": (lambda issuer: issuer.token("first", aud="shop"), "`aud` is 'shop'"),
    "audiences in one text": (lambda issuer: issuer.token("first", aud=f"shop {AUDIENCE}"), "another audience"),
    "odd audiences": (lambda issuer: issuer.token("first", aud=[{}, 1, None]), "another audience"),
    "an ID token": (lambda issuer: issuer.token("first", at_hash="x"), "it is an ID token"),
    "an ID token of Keycloak": (lambda issuer: issuer.token("first", typ="ID"), "it is an ID token"),
    "a claim twice": (with_a_claim_twice, "a claim of it is repeated"),
    "short key": (of_a_short_key, "1024 bits"),
    "end as text": (lambda issuer: issuer.token("first", exp="4000000000"), "as numbers"),
    "no date": (lambda issuer: issuer.token("first", exp=10**300), "before the year 9999"),
    "true": (lambda issuer: issuer.token("first", nbf=True), "as numbers"),
    "invisible": (lambda issuer: issuer.token("first", sub="ada\u200b"), "invisible"),
    "no audience": (lambda issuer: issuer.token("first", aud=None), "another audience"),
    "another issuer": (lambda issuer: issuer.token("first", iss="https://evil.example"), "issuer"),
    "no issuer": (lambda issuer: issuer.token("first", iss=None), '"iss"'),
    "no end": (lambda issuer: issuer.token("first", exp=None), '"exp"'),
    "expired": (lambda issuer: issuer.token("first", seconds=-6), "expired"),
    "not yet": (lambda issuer: issuer.token("first", nbf=int(time.time()) + 60), "not yet valid"),
    "no subject": (lambda issuer: issuer.token("first", sub=None), "an owner must have"),
    "odd subject": (lambda issuer: issuer.token("first", sub="a\nb"), "an owner must have"),
    "too long": (lambda issuer: issuer.token("first", more="x" * 20_000), "16384 characters"),
    "no token": (lambda _: "a.b.c", "no JSON web token"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_token_that_is_not_right_is_refused(
    site: Server, issuer: TestIssuer, document: Document, name: str
) -> None:
    make, reason = BAD[name]
    assert reason in await refusal_of(site, document, make(issuer))


async def test_clocks_may_differ_by_the_leeway_and_no_more(
    site: Server, issuer: TestIssuer, document: Document
) -> None:
    now = int(time.time())
    for claims, status in (
        ({"exp": now - 2}, 200),
        ({"exp": now - 10}, 401),
        ({"nbf": now + 3, "iat": now + 3}, 200),
        ({"nbf": now + 30}, 401),
    ):
        assert await status_with(site, document, issuer.token("first", **claims)) == status, claims


async def test_a_new_key_is_fetched_once_for_all_and_made_up_keys_are_not_fetched_each_time(
    site: Server, issuer: TestIssuer, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await status_with(site, document, issuer.token("first")) == 200
    issuer.add_key("second")
    token = issuer.token("second")
    assert await status_with(site, document, token) == 401, "the keys have only just been fetched"
    monkeypatch.setattr("turnstream.libraries.outgoing.issuer_keys._PAUSE", 0)
    found = await asyncio.gather(*(status_with(site, document, token) for _ in range(10)))
    assert set(found) == {200}
    assert issuer.fetches == 2
    monkeypatch.setattr("turnstream.libraries.outgoing.issuer_keys._PAUSE", 60)
    for number in range(20):
        issuer.add_key(f"made up {number}", "ES256", published=False)
        assert await status_with(site, document, issuer.token(f"made up {number}")) == 401
    assert issuer.fetches == 2
    assert await status_with(site, document, issuer.token("first")) == 200


async def test_a_key_that_was_withdrawn_is_refused_when_the_keys_are_old(
    site: Server, issuer: TestIssuer, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = issuer.token("first")
    assert await status_with(site, document, old) == 200
    issuer.add_key("second")
    issuer.published = ["second"]
    assert await status_with(site, document, old) == 200
    monkeypatch.setattr("turnstream.libraries.outgoing.issuer_keys._AGE", 0)
    monkeypatch.setattr("turnstream.libraries.outgoing.issuer_keys._PAUSE", 0)
    while await status_with(site, document, old) != 401:
        pass
    assert await status_with(site, document, issuer.token("second")) == 200


async def test_while_the_issuer_is_away_known_keys_are_used_and_unknown_ones_are_no_fault_of_the_client(
    site: Server, issuer: TestIssuer, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.libraries.outgoing.issuer_keys._PAUSE", 0)
    issuer.is_away = True
    async with Client(site.url, document, issuer.token("first")) as client:
        answer = await client.get("/api/chats")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        issuer.is_away = False
        assert (await client.get("/api/chats")).status_code == 200
        issuer.is_away = True
        monkeypatch.setattr("turnstream.libraries.outgoing.issuer_keys._AGE", 0)
        assert (await client.get("/api/chats")).status_code == 200
        assert await status_with(site, document, issuer.token("first", sub="bob")) == 200


async def test_the_tokens_of_the_server_are_taken_beside_those_of_the_issuer(site: Server, document: Document) -> None:
    assert await status_with(site, document, await site.token("ada")) == 200
    async with Client(site.url, document) as nobody:
        assert (await nobody.get("/api/chats", headers={"Host": "localhost"})).status_code == 401


# --- a proxy ---------------------------------------------------------------------------------------------------------


async def test_a_proxy_that_proves_itself_names_the_owner(site: Server, document: Document) -> None:
    proof = {"X-Turnstream-Proxy-Secret": SECRET}
    async with Client(site.url, document) as client:

        async def sent(*headers: tuple[str, str], method: str = "GET") -> int:
            raw = [(name.encode(), value.encode()) for name, value in headers]
            return (await client.request(method, "/api/chats", headers=raw)).status_code

        proven, ada = ("X-Turnstream-Proxy-Secret", SECRET), ("X-Turnstream-Owner", "ada")
        assert await sent(proven, ada, ("X-Forwarded-For", "203.0.113.9")) == 200
        assert await sent(proven, ada, method="POST") == 403
        assert await sent(proven, ada, ("X-Groups", "guests, writer"), method="POST") == 201
        assert await sent(ada) == 401
        assert await sent(proven) == 401
        assert await sent(("X-Turnstream-Proxy-Secret", SECRET[:-1]), ada) == 401
        assert await sent(proven, ada, ("X-Turnstream-Owner", "bob")) == 401
        assert await sent(proven, proven, ada) == 401
        assert await sent(proven, ("X-Turnstream-Owner", "")) == 401
        chats = (await client.get("/api/chats", headers={**proof, "X-Turnstream-Owner": "ada"})).json()["chats"]
        assert len(chats) == 1


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"jwt_issuer": "https://a.example"}, "TURNSTREAM_JWT_AUDIENCE must name the audience"),
        ({"jwt_issuer": "http://a.example", "jwt_audience": "x"}, "TURNSTREAM_JWT_ISSUER: http://a.example must begin"),
        (
            {"jwt_issuer": "https://a.example", "jwt_audience": "x", "jwt_keys_url": "http://a.example/keys"},
            "TURNSTREAM_JWT_KEYS_URL: http://a.example/keys must begin with https://",
        ),
        (
            {"jwt_issuer": "https://a.example", "jwt_audience": "x", "jwt_algorithms": "RS256, HS256"},
            "TURNSTREAM_JWT_ALGORITHMS must name some of RS256",
        ),
        (
            {"jwt_issuer": "https://a.example", "jwt_audience": "x", "jwt_owner_claim": "email"},
            "TURNSTREAM_JWT_OWNER_CLAIM is email. At many issuers, users can change",
        ),
        ({"login_scopes": "read, write"}, "TURNSTREAM_LOGIN_SCOPES: 'write' is no scope"),
        ({"login_roles": "staff"}, "TURNSTREAM_LOGIN_ROLES must be such as"),
        ({"login_roles": "staff=all"}, "TURNSTREAM_LOGIN_ROLES: 'all' is no scope"),
        ({"proxy_secret": "short"}, "TURNSTREAM_PROXY_SECRET must have at least 16 characters"),
        ({"metrics_token": "short"}, "TURNSTREAM_METRICS_TOKEN must have at least 16 characters"),
    ],
)
async def test_settings_that_would_open_the_server_stop_its_start(
    database_url: str, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        async with running(Settings(_env_file=None, database_url=database_url, **settings)):
            pass
