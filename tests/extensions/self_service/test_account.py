"""The account of an owner over HTTP: what it contains, what the owner can revoke, and which credentials have access to
it.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest

from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.kit.ids import new_id

CALLS = [
    ("GET", "/api/account"),
    ("GET", "/api/account/credentials"),
    ("DELETE", f"/api/account/credentials/{UUID(int=1)}"),
    ("GET", "/api/account/grants"),
    ("GET", "/api/account/audit"),
    ("POST", "/api/account/erasure"),
    ("DELETE", "/api/account/erasure"),
]


@pytest.fixture(autouse=True)
def no_token_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.api.identity.stored.BELIEVED", 0)


@pytest.fixture
async def own(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url, self_service=True) as server:
        yield server


@pytest.fixture
async def ada(own: Server) -> AsyncIterator[Client]:
    async with Client(own.url, None, await own.token("ada"), "ada") as client:
        yield client


@pytest.fixture
async def bob(own: Server) -> AsyncIterator[Client]:
    async with Client(own.url, None, await own.token("bob"), "bob") as client:
        yield client


async def _granted(server: Server, client: Client) -> str:
    """Stores a remembered approval for a chat of the client. Returns the approval's id."""
    turn, grant = await client.ask(await client.chat()), new_id()
    connection = await asyncpg.connect(server.database_url)
    try:
        await connection.execute(
            """INSERT INTO grants (id, chat_id, tool, digest, "when", turn_id, tool_use_id)
            VALUES ($1, $2, 'send', '', '{"to":{"const":"eve"}}', $3, 'c')""",
            grant,
            turn.assistant["chat_id"],
            turn.assistant["id"],
        )
    finally:
        await connection.close()
    return str(grant)


async def _entries(client: Client, **query: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = (await client.json("GET", "/api/account/audit", params=query))["entries"]
    return entries


async def test_an_account_counts_a_limited_number_of_rows(ada: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.extensions.self_service.account.MOST_COUNTED", 2)
    for name in "abc":
        await ada.post("/api/uploads", content=f"bytes of {name}")
        await ada.json("POST", "/api/chats", 201, json={})
    account = await ada.json("GET", "/api/account")
    assert (account["chats"], account["uploads"], account["bytes"]) == (2, 2, 20)


async def test_owners_see_their_own_account_and_nothing_of_others(own: Server, ada: Client, bob: Client) -> None:
    theirs = await _granted(own, bob)
    await bob.put("/api/documents/plan", content="Bob's")
    await bob.post("/api/uploads", content="bytes of bob")
    await bob.json("POST", "/api/account/erasure", 202, json={"owner": "bob"})
    account = await ada.json("GET", "/api/account")
    empty = {"owner": "ada", "chats": 0, "uploads": 0, "bytes": 0, "documents": 0, "erasure_due_at": None}
    assert account == empty
    assert (await ada.json("GET", "/api/account/grants"))["grants"] == []
    assert {each["name"].split()[0] for each in (await ada.json("GET", "/api/account/credentials"))["credentials"]} == {
        "ada"
    }
    assert {each["kind"] for each in await _entries(ada)} == {"token.created"}
    account = await bob.json("GET", "/api/account")
    assert (account["chats"], account["uploads"], account["bytes"], account["documents"]) == (1, 1, 12, 1)
    (grant,) = (await bob.json("GET", "/api/account/grants"))["grants"]
    assert (grant["id"], grant["tool"], grant["when"]) == (theirs, "send", {"to": {"const": "eve"}})
    assert grant["title"] == "Hi"
    assert [each["kind"] for each in await _entries(bob)] == ["erasure.asked", "grant.given", "token.created"]


async def test_a_revoked_token_is_refused_and_so_are_those_made_from_it(own: Server, ada: Client) -> None:
    other = await own.token("ada")
    async with Client(own.url, None, other) as phone:
        page = (await phone.json("POST", "/api/tokens", json={"seconds": 600}))["token"]
    credentials = (await ada.json("GET", "/api/account/credentials"))["credentials"]
    assert [(each["kind"], each["current"]) for each in credentials] == [
        ("token", False),
        ("token", True),
        ("browser", False),
    ]
    assert not {"hash", "token", "secret"} & credentials[0].keys()
    revoked = await ada.json("DELETE", f"/api/account/credentials/{credentials[0]['id']}")
    assert revoked == {"revoked": credentials[0]["id"]}
    for token in (other, page):
        async with Client(own.url, None, token) as thief:
            assert (await thief.get("/api/chats")).status_code == 401
    assert [each["id"] for each in (await ada.json("GET", "/api/account/credentials"))["credentials"]] == [
        credentials[1]["id"]
    ]
    entry = (await _entries(ada))[0]
    assert (entry["kind"], entry["actor"]) == ("token.deleted", f"token:{credentials[1]['id']}")
    assert entry["detail"]["token"] == credentials[0]["id"]


async def test_a_browser_token_is_revoked_alone(own: Server, ada: Client) -> None:
    page = (await ada.json("POST", "/api/tokens", json={"seconds": 600}))["token"]
    (id,) = (
        each["id"]
        for each in (await ada.json("GET", "/api/account/credentials"))["credentials"]
        if each["kind"] == "browser"
    )
    await ada.json("DELETE", f"/api/account/credentials/{id}")
    async with Client(own.url, None, page) as thief:
        assert (await thief.get("/api/chats")).status_code == 401
    entry = (await _entries(ada))[0]
    assert (entry["kind"], entry["detail"]) == ("token.deleted", {"token": id})


async def test_a_credential_of_another_owner_is_not_found_and_stays(ada: Client, bob: Client) -> None:
    (theirs,) = (await bob.json("GET", "/api/account/credentials"))["credentials"]
    problem = await ada.json("DELETE", f"/api/account/credentials/{theirs['id']}", 404)
    assert theirs["id"] in problem["detail"]
    assert (await bob.json("GET", "/api/account/credentials"))["credentials"][0]["id"] == theirs["id"]
    assert {each["kind"] for each in await _entries(bob)} == {"token.created"}


async def test_the_trail_is_read_in_pages_without_gaps(own: Server, ada: Client) -> None:
    for _ in range(4):
        await own.token("ada")
    whole, pages, before = await _entries(ada), list[dict[str, Any]](), None
    while True:
        query = {"limit": 2} | ({} if before is None else {"before": before})
        page = await ada.json("GET", "/api/account/audit", params=query)
        pages += page["entries"]
        if (before := page["next"]) is None:
            break
    assert pages == whole
    assert len(whole) == 5


@pytest.mark.parametrize("before", ["x", "-1", "٣", "1" * 19, "9" * 5000])
async def test_a_wrong_place_in_the_trail_is_refused_with_its_field(ada: Client, before: str) -> None:
    problem = await ada.json("GET", "/api/account/audit", 422, params={"before": before})
    assert [each["field"] for each in problem["errors"]] == ["before"]


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_a_credential_with_less_than_the_rights_of_a_person_does_not_reach_the_account(
    own: Server, ada: Client, method: str, path: str
) -> None:
    chat = (await ada.json("POST", "/api/chats", 201, json={}))["id"]
    exchanges: list[dict[str, Any]] = [
        {"scopes": ["read"]},
        {"scopes": ["read", "chat"]},
        {"chat": chat},
        {"fixed": {"system_prompt": "x"}},
    ]
    for each in exchanges:
        made = await ada.json("POST", "/api/tokens", json={"seconds": 600, **each})
        async with Client(own.url, None, made["token"]) as weak:
            response = await weak.request(method, path, json={"owner": "ada"})
            assert response.status_code == 403, (each, response.text)
    assert (await ada.json("GET", "/api/account"))["erasure_due_at"] is None


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_self_service_is_off_unless_the_operator_turns_it_on(database_url: str, method: str, path: str) -> None:
    async with serving(database_url) as server, httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        response = await client.request(method, path, json={"owner": "local"})
        assert response.status_code == 403
        assert "TURNSTREAM_SELF_SERVICE" in response.json()["detail"]


async def test_an_erasure_needs_the_name_of_the_owner(ada: Client) -> None:
    for body in ({"owner": "bob"}, {}, {"owner": "ada", "now": True}):
        problem = await ada.json("POST", "/api/account/erasure", 422, json=body)
        assert problem["errors"][0]["field"] in {"owner", "now"}
    assert (await ada.json("GET", "/api/account"))["erasure_due_at"] is None


async def test_an_erasure_is_asked_for_once_and_undone_in_time(ada: Client) -> None:
    asked = await ada.json("POST", "/api/account/erasure", 202, json={"owner": "ada"})
    due = datetime.fromisoformat(asked["due_at"])
    assert timedelta(days=6) < due - datetime.now(UTC) < timedelta(days=8)
    assert await ada.json("POST", "/api/account/erasure", 202, json={"owner": "ada"}) == asked
    assert (await ada.json("GET", "/api/account"))["erasure_due_at"] == asked["due_at"]
    assert await ada.json("DELETE", "/api/account/erasure") == {"undone": "ada"}
    assert (await ada.json("GET", "/api/account"))["erasure_due_at"] is None
    await ada.json("DELETE", "/api/account/erasure", 404)
    kinds = [each["kind"] for each in await _entries(ada)]
    assert kinds == ["erasure.undone", "erasure.asked", "token.created"]
