"""Who makes a request, and the rights of the request's credential."""

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import httpx2
import pytest
from starlette.requests import Request

from tests.integration.api.test_openapi import LOOK, body_of, nothing_there, until
from tests.support.calls import ENDPOINTS
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.locks import Locker
from tests.support.openapi_document import Document
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.identity.local import LocalMachine
from turnstream.api.identity.stored import StoredTokens
from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import LOCAL_OWNER, SCOPES, Identity, Scope
from turnstream.scripted import message_of, text, tool_use
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Left out is the call with which a credential ends its own session, because every credential may make this call.
PROTECTED = [endpoint for endpoint in ENDPOINTS if not endpoint.open and endpoint.scopes != SCOPES]


def named(endpoint: Endpoint) -> str:
    return endpoint.call


# --- scopes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", PROTECTED, ids=named)
async def test_a_call_without_its_scope_is_refused_by_name(
    server: Server, document: Document, endpoint: Endpoint
) -> None:
    others = [scope for scope in SCOPES if scope not in endpoint.scopes]
    async with Client(server.url, document, await server.token("somebody", *others)) as client:
        answer = await client.request(endpoint.method, nothing_there(endpoint), **body_of(endpoint))
    assert answer.status_code == 403
    assert answer.headers["www-authenticate"] == (
        f'Bearer error="insufficient_scope", scope="{" ".join(endpoint.scopes)}"'
    )
    for scope in endpoint.scopes:
        assert f"`{scope}`" in answer.json()["detail"]


async def test_a_scope_opens_its_calls_alone(server: Server, document: Document) -> None:
    owner = "who reads"
    async with Client(server.url, document, await server.token(owner, "read")) as reader:
        assert (await reader.get("/api/chats")).status_code == 200
        assert (await reader.post("/api/chats", json={})).status_code == 403
        assert (await reader.head("/api/chats")).status_code == 200
    async with Client(server.url, document, await server.token(owner, "chat")) as writer:
        assert (await writer.head("/api/chats")).status_code == 403
        assert (await writer.post("/api/chats", json={})).status_code == 201


async def test_results_need_chat_and_decisions_need_approve(api: Client, server: Server, document: Document) -> None:
    model = server.scripts.model(message_of(tool_use("look", {}, "c")), message_of(text("Hi.")))
    turn = await api.say(await api.chat(), model=model, tools=[LOOK])
    async with api.follow(turn.stream_url) as events:
        assert "action_required" in [event.name async for event in until("action_required", events)]
    decision = {"type": "deny", "tool_use_id": "c", "input_digest": "0"}
    result = {"type": "result", "tool_use_id": "c", "output": "a cat"}
    async with (
        Client(server.url, document, await server.token(api.owner, "chat")) as writer,
        Client(server.url, document, await server.token(api.owner, "approve")) as approver,
    ):
        for client, action, needed in ((writer, decision, "approve"), (approver, result, "chat")):
            answer = await client.post(f"{turn.url}/actions", json={"actions": [action]})
            assert answer.status_code == 403
            assert f"`{needed}`" in answer.json()["detail"]
        chat = turn.assistant["chat_id"]
        part = {"type": "tool-look", "toolCallId": "c", "state": "output-available", "output": "a cat"}
        answers = {"id": chat, "messages": [{"id": turn.assistant["id"], "role": "assistant", "parts": [part]}]}
        assert (await approver.post("/api/ai-sdk/chat", json=answers)).status_code == 403
        words = {"id": chat, "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]}
        assert (await approver.post("/api/ai-sdk/chat", json=words)).status_code == 403
        assert (await writer.post(f"{turn.url}/actions", json={"actions": [result]})).status_code == 202


# --- stored tokens ---------------------------------------------------------------------------------------------------


async def test_a_token_ends_when_it_expires(server: Server, document: Document) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    async with Client(server.url, document, await server.token("guest", expires_at=soon)) as guest:
        assert (await guest.get("/api/chats")).status_code == 200
        await asyncio.sleep((soon - datetime.now(UTC)).total_seconds())  # the token is still remembered as valid
        refused = await guest.get("/api/chats")
        assert (refused.status_code, "expired" in refused.json()["detail"]) == (401, True)
    past = datetime.now(UTC) - timedelta(days=1)
    async with Client(server.url, document, await server.token("guest", expires_at=past)) as guest:
        assert (await guest.get("/api/chats")).status_code == 401


class Counted(Tokens):
    """Counts queries, and delays each query until `go` is set."""

    queries = 0

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def identities(self, tokens: object) -> dict[str, Identity]:
        self.queries += 1
        await self.go.wait()
        return {}


def request_with(token: str) -> Request:
    return Request({"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())]})


async def test_any_number_of_made_up_tokens_is_one_query_at_a_time() -> None:
    tokens = Counted()
    stored = StoredTokens(tokens)
    made_up = [stored.identity_of(request_with(f"ts_{number:032x}_{'x' * 43}")) for number in range(1000)]
    asked = asyncio.gather(*made_up, return_exceptions=True)
    await asyncio.sleep(0)
    tokens.go.set()
    assert {type(each) for each in await asked} == {Unauthorized}
    assert tokens.queries <= 2


async def test_the_last_use_of_a_token_is_written_behind_the_requests(
    server: Server, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(server.services.storage.database)
    stored = StoredTokens(tokens)
    token = await tokens.create("used once", Identity("clock"))
    await tokens.create("never used", Identity("clock"))
    assert await stored.identity_of(request_with(token))
    monkeypatch.setattr("turnstream.api.identity.stored._USES_PAUSE", 0)
    recording = asyncio.create_task(stored.record_uses())
    while True:
        used = {each.name: each.last_used_at for each in await tokens.list() if each.owner == "clock"}
        if used["used once"] is not None:
            break
    recording.cancel()
    assert used["never used"] is None


# --- a server without tokens -----------------------------------------------------------------------------------------


async def test_once_there_was_a_token_a_server_stays_shut(database_url: str, document: Document) -> None:
    async with connect(database_url, size=2) as database:
        tokens = Tokens(database)
        assert not await tokens.ever_existed()
        await tokens.create("only", Identity("ada"))
        await tokens.delete("only")
        assert not await tokens.exist()
    async with serving(database_url) as server, Client(server.url, document) as anyone:
        assert (await anyone.get("/api/chats")).status_code == 401
        async with Client(server.url, document, await server.token("local")) as owner:
            assert (await owner.get("/api/chats")).status_code == 200


async def test_requests_at_once_share_the_check_that_there_is_no_token(database_url: str) -> None:
    holder, watcher = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    locker = Locker(holder, watcher)
    async with connect(database_url, size=10) as database:
        here = LocalMachine(Tokens(database))
        request = Request({"type": "http", "client": ("127.0.0.1", 1), "headers": [(b"host", b"localhost")]})
        async with locker.holding("LOCK TABLE tokens"):
            asked = [asyncio.create_task(here.identity_of(request)) for _ in range(20)]
            await locker.waiting()
            assert await locker.number_waiting() == 1
        assert {each and each.owner for each in await asyncio.gather(*asked)} == {LOCAL_OWNER}
    await holder.close()
    await watcher.close()


PEERS = {
    ("127.0.0.1", 1): True,
    ("127.8.0.1", 1): True,
    ("::1", 1): True,
    ("::ffff:127.0.0.1", 1): True,
    ("192.0.2.7", 1): False,
    ("::ffff:192.0.2.7", 1): False,
    ("testclient", 1): False,
    None: False,
}


async def test_without_tokens_no_other_machine_is_answered_whatever_host_it_claims(database_url: str) -> None:
    """The app comes from `create_app`, and its server listens on every address. The settings do not contain this
    address.
    """
    async with serving(database_url) as server:
        for peer, answered in PEERS.items():
            transport = httpx2.ASGITransport(server.app, client=peer)  # type: ignore[arg-type]
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
                answer = await client.get("/api/chats")
                assert answer.status_code == (200 if answered else 401), peer
                if not answered:
                    assert "another machine" in answer.json()["detail"]


async def test_without_tokens_any_key_is_the_local_owners_but_not_for_a_foreign_page(database_url: str) -> None:
    async with serving(database_url) as server, httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        for key in ("EMPTY", "none", "ollama", "lm-studio", "sk-1234", "sk-ant-x"):
            headers = {"Authorization": f"Bearer {key}"}
            for path in ("/api/chats", "/v1/models", "/api/ag-ui/capabilities"):
                assert (await client.get(path, headers=headers)).status_code in {200, 404}, path
            refused = await client.get("/api/chats", headers={**headers, "Origin": "https://elsewhere.example"})
            assert refused.status_code == 401
        await server.token("ada")  # from now on a request needs a token
    async with serving(database_url) as server, httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        assert (await client.get("/api/chats", headers={"Authorization": "Bearer sk-1234"})).status_code == 401


async def test_the_local_owner_is_looked_for_in_the_table_only_until_the_first_token(database_url: str) -> None:
    async with connect(database_url, size=2) as database:
        tokens = Tokens(database)
        await tokens.create("only", Identity("ada"))
        local = LocalMachine(tokens)
        request = Request({"type": "http", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1)})
        assert await local.identity_of(request) is None
    assert await local.identity_of(request) is None  # the identity needs no database


# --- a function of the program ---------------------------------------------------------------------------------------


async def test_a_program_authenticates_by_a_function_of_its_own(database_url: str, document: Document) -> None:
    async def by_session(request: Request) -> Identity | None:
        name = request.cookies.get("session")
        if name == "stolen":
            raise Unauthorized("The session has ended; log in again.")
        return Identity(name, frozenset[Scope]({"read"})) if name else None

    async with serving(database_url, host="0.0.0.0", authenticate=by_session) as server:
        async with Client(server.url, document) as client:
            assert (await client.get("/api/chats")).status_code == 401
            ada = {"Cookie": "session=ada"}
            assert (await client.get("/api/chats", headers=ada)).status_code == 200
            assert (await client.post("/api/chats", headers=ada, json={})).status_code == 403
            refused = await client.get("/api/chats", headers={"Cookie": "session=stolen"})
            assert (refused.status_code, refused.json()["detail"]) == (401, "The session has ended; log in again.")
        async with Client(server.url, document, await server.token("ada")) as client:
            assert (await client.get("/api/chats")).status_code == 200


async def test_the_migration_remembers_that_there_are_tokens(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "INSERT INTO tokens (id, owner, name, hash) VALUES (gen_random_uuid(), 'a', 'a', sha256('x'))"
    )
    row = await connection.fetchrow("SELECT scopes, expires_at FROM tokens")  # a row as an older replica creates it
    await connection.close()
    assert row is not None
    assert (row["scopes"], row["expires_at"]) == (["read", "chat", "approve"], None)
