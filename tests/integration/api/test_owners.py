"""Separation of owners: nobody sees, changes or finds data of another owner."""

from uuid import UUID, uuid4

import pytest

from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client, said, words_of
from tests.support.http_server import Server, pausing
from tests.support.openapi_document import Document
from turnstream.domain.identity import Identity
from turnstream.scripted import Pause, message_of, text, tool_use
from turnstream.storage.owners.tokens import Tokens

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_another_owners_chat_is_as_if_it_were_not_there(api: Client, new_owner: NewOwner, server: Server) -> None:
    pause = Pause()
    turn = await api.say(await api.chat(title="Mine"), model=server.scripts.model(pausing(pause, "One ", "two.")))
    await pause.reached.wait()
    chat = turn.url.partition("/turns")[0]
    stranger = await new_owner()
    for method, path in (
        *(("GET", chat), ("PATCH", chat), ("DELETE", chat), ("GET", f"{chat}/turns"), ("GET", turn.url)),
        *(("GET", f"{chat}/turns?leaf={turn.user['id']}"), ("GET", f"{turn.url}/path"), ("GET", turn.stream_url)),
        *(("GET", f"{turn.url}/siblings"), ("POST", f"{turn.url}/cancel"), ("POST", f"{turn.url}/regenerate")),
    ):
        theirs = await stranger.json(method, path, 404)
        nobodys = path.replace(chat, f"/api/chats/{uuid4()}")
        assert theirs.keys() == (await stranger.json(method, nobodys, 404)).keys()
    await stranger.json("POST", f"{chat}/turns", 404, json=said("Hi"))
    assert (await stranger.json("GET", "/api/chats"))["chats"] == []
    pause.go.set()
    await api.events(turn.stream_url)
    path = (await api.json("GET", f"{chat}/turns"))["turns"]
    assert [words_of(turn) for turn in path] == ["Hi", "One two."]


async def test_a_turn_is_not_found_through_a_chat_of_ones_own(api: Client, new_owner: NewOwner) -> None:
    theirs = await api.ask(await api.chat())
    stranger = await new_owner()
    mine = await stranger.chat()
    identity = theirs.assistant["id"]
    for path in ("", "/path", "/siblings", "/stream"):
        await stranger.json("GET", f"{mine}/turns/{identity}{path}", 404)
    await stranger.json("GET", f"{mine}/turns?leaf={identity}", 404)
    await stranger.json("POST", f"{mine}/turns/{identity}/cancel", 404)
    await stranger.json("POST", f"{mine}/turns/{identity}/regenerate", 404)


@pytest.mark.extensions("documents")
async def test_another_owners_document_is_as_if_it_were_not_there(
    api: Client, new_owner: NewOwner, server: Server
) -> None:
    await api.put("/api/documents/notes/tides.md", content="The secret of the tides is the moon.")
    stranger = await new_owner()
    await stranger.json("GET", "/api/documents/notes/tides.md", 404)
    await stranger.json("DELETE", "/api/documents/notes/tides.md", 404)
    assert (await stranger.json("GET", "/api/documents"))["documents"] == []
    assert (await stranger.put("/api/documents/notes/tides.md", content="Mine.")).status_code == 201
    assert (await api.get("/api/documents/notes/tides.md")).text == "The secret of the tides is the moon."
    calls = [
        tool_use("doc_search", {"query": "secret tides moon"}, "1"),
        tool_use("doc_view", {"path": "notes/x"}, "2"),
    ]
    model = server.scripts.model(message_of(*calls), message_of(text("Nothing.")))
    turn = (await stranger.ask(await stranger.chat(), model=model)).assistant
    results = [block["text"] for block in turn["blocks"] if block["type"] == "tool_result"]
    assert len(results) == 2
    assert not any("the moon" in result for result in results)


# --- tokens ----------------------------------------------------------------------------------------------------------


async def test_without_a_token_every_call_is_refused(server: Server, document: Document) -> None:
    async with Client(server.url, document) as nobody:
        refused = await nobody.get("/api/chats")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
            assert (await nobody.get(path)).status_code == 200
        metrics = (await nobody.get("/metrics")).text
        for name in ("turns_queued", "turns_waiting", "tasks", "tools_running", "turns_running"):
            assert f"\nturnstream_{name} " in metrics


@pytest.mark.parametrize(
    "header",
    [
        *("", "Bearer", "Basic Zm9vOmJhcg==", "{token}", "Token {token}", "Bearer x", "Bearer ts_x_y"),
        *("Bearer {token}x", "Bearer x{token}", "Bearer {token} {token}", "Bearer {other_secret}", "Bearer {other_id}"),
        *("Bearer ts_{token}", "Bearer {upper}", "Bearer té", "Bearer \x80", "Bearer " + "x" * 10_000, "Bearer ts__"),
        *("Bearer ts_{{{identity}}}_{secret}", "Bearer ts_{dashes}_{secret}", "Bearer ts_urn:uuid:{identity}_{secret}"),
        *("Bearer ts_" + "²" * 32 + "_x", "Bearer ts_-" + "1" * 31 + "_x", "Bearer ts_0x" + "1" * 30 + "_x"),
    ],
)
async def test_an_unknown_token_is_refused(server: Server, document: Document, header: str) -> None:
    token = await server.token("somebody")
    prefix, identity, secret = token.split("_", 2)
    value = header.format(
        token=token,
        identity=identity,
        secret=secret,
        dashes=str(UUID(identity)),
        upper=token.upper(),
        other_secret=f"{prefix}_{identity}_{secret[::-1]}",
        other_id=f"{prefix}_{UUID(int=0).hex}_{secret}",
    )
    async with Client(server.url, document) as client:
        answer = await client.get("/api/chats", headers=[(b"Authorization", value.encode("latin-1"))])
        assert answer.status_code == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
async def test_the_scheme_may_be_written_as_one_likes(server: Server, document: Document, scheme: str) -> None:
    token = await server.token("somebody")
    async with Client(server.url, document) as client:
        answer = await client.get("/api/chats", headers={"Authorization": f"{scheme} {token}"})
        assert answer.status_code == 200


async def test_all_tokens_of_an_owner_open_the_same(api: Client, server: Server, document: Document) -> None:
    chat = await api.chat(title="Mine")
    async with Client(server.url, document, await server.token(api.owner)) as other_device:
        assert (await other_device.json("GET", chat))["title"] == "Mine"


async def test_a_token_that_was_taken_back_is_refused(
    server: Server, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.api.identity.stored.BELIEVED", 0)
    tokens = Tokens(server.services.storage.database)
    async with Client(server.url, document, await tokens.create("lost phone", Identity("somebody"))) as client:
        assert (await client.get("/api/chats")).status_code == 200
        assert await tokens.delete("lost phone")
        assert (await client.get("/api/chats")).status_code == 401
