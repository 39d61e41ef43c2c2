"""Short-lived tokens for browsers: each token has fewer rights than the credential that created it, and expires with
that credential.
"""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.integration.api.test_openapi import body_of, filled
from tests.support.calls import ENDPOINTS
from tests.support.http_client import Client, said
from tests.support.http_server import Server, pausing
from tests.support.openapi_document import Document
from tests.support.programs import path_of
from turnstream.domain.errors import Unauthorized
from turnstream.domain.identity import Identity
from turnstream.extensions.browsers.rows import create_for_browser
from turnstream.scripted import Pause
from turnstream.storage.database import Statement
from turnstream.storage.owners.tokens import Tokens

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def exchanged(client: Client, **wanted: Any) -> dict[str, Any]:
    found: dict[str, Any] = await client.json("POST", "/api/tokens", json=wanted)
    return found


async def test_a_credential_is_exchanged_for_one_that_allows_less(
    api: Client, server: Server, document: Document
) -> None:
    made = await exchanged(api, scopes=["read"], seconds=60)
    assert (made["owner"], made["scopes"], made["chat"], made["turn"]) == (api.owner, ["read"], None, None)
    left = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(seconds=50) < left <= timedelta(seconds=60)
    async with Client(server.url, document, made["token"]) as browser:
        about = await browser.json("GET", "/api/me")
        assert about | {"features": []} == {name: made[name] for name in made if name != "token"}
        assert (await browser.get("/api/chats")).status_code == 200
        assert (await browser.post("/api/chats", json={})).status_code == 403
        assert (await browser.post("/api/tokens", json={})).status_code == 403, "it does not prolong itself"
    usual = await exchanged(api)
    assert usual["scopes"] == ["read", "chat", "approve"]


async def test_a_browser_token_never_has_more_rights_than_its_credential(
    api: Client, server: Server, document: Document
) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=5)
    async with Client(server.url, document, await server.token(api.owner, "read", expires_at=soon)) as reader:
        assert datetime.fromisoformat((await exchanged(reader))["expires_at"]) == soon
        more: list[dict[str, Any]] = [{"scopes": ["chat"]}, {"scopes": ["admin"]}, {"owner": "bob"}, {"plan": "gold"}]
        for wanted in more:
            assert (await reader.post("/api/tokens", json=wanted)).status_code == 403, wanted
    wrong: list[dict[str, Any]] = [
        {"seconds": 3601},
        {"turn": str(uuid4())},
        {"scopes": []},
        {"scopes": ["fly"]},
        {"seconds": 0},
    ]
    for wanted in wrong:
        assert (await api.post("/api/tokens", json=wanted)).status_code == 422, wanted
    assert (await api.post("/api/tokens", json={"chat": str(uuid4())})).status_code == 404


async def test_with_the_scope_admin_a_backend_makes_tokens_for_its_users(server: Server, document: Document) -> None:
    async with Client(server.url, document, await server.token("backend", "read", "chat", "admin")) as backend:
        made = await exchanged(backend, owner="user 1", plan="gold")
        assert (made["owner"], made["scopes"]) == ("user 1", ["read", "chat"])
    found = await Tokens(server.services.storage.database).identities([made["token"]])
    assert (found[made["token"]].owner, found[made["token"]].plan) == ("user 1", "gold")
    async with Client(server.url, document, made["token"]) as browser:
        assert (await browser.post("/api/chats", json={})).status_code == 201


@pytest.mark.parametrize("bound_to", ["chat", "turn"])
async def test_a_bound_token_reaches_nothing_else(
    api: Client, server: Server, document: Document, bound_to: str
) -> None:
    mine, other = await api.ask(await api.chat()), await api.ask(await api.chat())
    chat, turn = mine.assistant["chat_id"], mine.assistant["id"]
    upload = await api.json("POST", "/api/uploads", 201, content=uuid4().hex)
    made = await exchanged(api, chat=chat, **({"turn": turn} if bound_to == "turn" else {}))
    refused = set()
    async with Client(server.url, document, made["token"]) as browser:
        for endpoint in (each for each in ENDPOINTS if not each.open):
            ids = {
                "{chat}": other.assistant["chat_id"],
                "{id}": other.assistant["chat_id"],
                "{turn}": other.assistant["id"],
                "{upload}": upload["id"],
                "{grant}": str(uuid4()),
                "{tool_use_id}": "c",
                "{path:path}": "there",
            }
            answer = await browser.request(endpoint.method, filled(endpoint, ids), **body_of(endpoint))
            if answer.status_code == 403:
                refused.add(endpoint.call)
        left = {each.call for each in ENDPOINTS if not each.open} - refused
        listed = {"GET /api/me", "GET /api/models", "GET /api/tools"}
        assert left == listed | ({"POST /api/uploads"} if bound_to == "chat" else set())
        assert (await browser.get(mine.url)).status_code == 200
        assert (await browser.get(mine.stream_url)).status_code == 200
        around = 200 if bound_to == "chat" else 403
        for path in (f"/api/chats/{chat}", f"/api/chats/{chat}/turns", f"{mine.url}/path", f"/api/ai-sdk/chat/{chat}"):
            assert (await browser.get(path)).status_code == around, path
        assert (await browser.post(f"{mine.url}/fork", json={"into": "chat"})).status_code == 403
        if bound_to == "chat":
            assert (await browser.post(f"/api/chats/{chat}/turns", json=said("More"))).status_code == 201


async def test_a_bound_token_gets_the_pictures_of_its_chat_alone(
    api: Client, server: Server, document: Document
) -> None:
    shown, hidden = [await api.json("POST", "/api/uploads", 201, content=uuid4().hex) for _ in range(2)]
    blocks = [{"type": "document", "source": {"type": "upload", "id": shown["id"]}}]
    turn = await api.say(await api.chat(), blocks=blocks)
    made = await exchanged(api, chat=turn.assistant["chat_id"])
    async with Client(server.url, document, made["token"]) as browser:
        assert (await browser.get(f"/api/uploads/{shown['id']}")).status_code == 200
        assert (await browser.get(f"/api/uploads/{hidden['id']}")).status_code == 403


async def test_a_browser_token_ends_with_the_exchanged_token(
    server: Server, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.api.identity.stored.BELIEVED", 0)
    database, name = server.services.storage.database, f"backend {uuid4()}"
    tokens = Tokens(database)
    async with Client(server.url, document, await tokens.create(name, Identity("ada"))) as backend:
        made = await exchanged(backend)
    async with Client(server.url, document, made["token"]) as browser:
        assert (await browser.get("/api/chats")).status_code == 200
        assert await tokens.delete(name)
        assert (await browser.get("/api/chats")).status_code == 401
    gone = Identity("ada", expires_at=datetime.now(UTC) + timedelta(minutes=1), credential=f"token:{uuid4()}")
    # The original token was deleted after the check of the request, but before the exchange.
    with pytest.raises(Unauthorized, match="revoked"):
        await create_for_browser(database, tokens, gone)


async def test_tokens_that_have_expired_are_removed_as_others_are_made(server: Server) -> None:
    database = server.services.storage.database
    tokens = Tokens(database)
    past, later = (datetime.now(UTC) + timedelta(seconds=seconds) for seconds in (-1, 60))
    old = await create_for_browser(database, tokens, Identity("ada", expires_at=past))
    assert await tokens.identities([old]) == {}
    await create_for_browser(database, tokens, Identity("ada", expires_at=later))
    new = await create_for_browser(database, tokens, Identity("ada", expires_at=later))
    assert UUID(new.split("_")[1]) != UUID(old.split("_")[1])
    swapped = f"ts_{new[3:]}"
    assert (await tokens.identities([new, swapped])).keys() == {new}, "one spelling for each token"


_FOLLOW = """
import { Client } from CLIENT
const exchange = () => fetch(BASE + '/api/tokens', {
  method: 'POST',
  headers: { Authorization: `Bearer ${KEY}`, 'Content-Type': 'application/json' },
  body: JSON.stringify({ chat: CHAT, scopes: ['read'], seconds: 1 }),
})
EXAMPLE
let text = ''
for await (const { event, data } of client.follow(CHAT, TURN)) if (event === 'block_delta') text += data.text
console.log(text)
"""


@pytest.mark.needs("Node")
async def test_the_client_of_the_page_renews_its_token_in_mid_stream(
    api: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.api.streams.watch.PAUSE", 0.05)
    pause = Pause()
    turn = await api.say(await api.chat(), model=server.scripts.model(pausing(pause, "One ", "two.")))
    section = (ROOT / "docs/frontends.md").read_text(encoding="utf-8").partition("\n## Tokens\n")[2]
    example = re.findall(r"```js\n(.*?)```", section, re.DOTALL)[0]
    assert "fetch('/my-backend/chat-token', { method: 'POST' })" in example
    values = {
        "CLIENT": json.dumps((ROOT / "app/turnstream/web/static/turnstream.js").as_uri()),
        "EXAMPLE": example.replace("fetch('/my-backend/chat-token', { method: 'POST' })", "exchange()").replace(
            "new Client({", "new Client({ base: BASE,"
        ),
        "BASE": json.dumps(server.url),
        "KEY": json.dumps(await server.token(api.owner)),
        "CHAT": json.dumps(turn.assistant["chat_id"]),
        "TURN": json.dumps(turn.assistant["id"]),
    }
    script = _FOLLOW
    for name, value in values.items():
        script = script.replace(name, value)
    command = [path_of("Node"), "--input-type=module", "--eval", script]
    running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    made, seen = Statement("SELECT id FROM browser_tokens WHERE owner = :owner"), set[UUID]()
    async with asyncio.timeout(40):
        while len(seen) < 2:  # the first token is still valid
            seen |= {row["id"] for row in await server.services.storage.database.rows(made, owner=api.owner)}
        pause.go.set()
        printed, _ = await running.communicate()
    assert printed.decode() == "One two.\n"
