"""Shared chats: what a link shows, who may view it, and how long it is valid."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, get_args
from uuid import UUID, uuid4

import asyncpg
import httpx2
import pytest

from tests.extensions.sharing.conftest import LOOK
from tests.support.http_client import Client, Said
from tests.support.http_server import Server, pausing, serving
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import KINDS, Family
from turnstream.extensions.sharing import view
from turnstream.scripted import Pause, message_of, text, thinking, tool_use

PNG = b"\x89PNG\r\n\x1a\n" + b"not really"


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.extensions.sharing.shares._FRESH", 0.0)
    monkeypatch.setattr("turnstream.api.identity.stored.BELIEVED", 0)


@pytest.fixture
async def nobody(server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        yield client


def address(share: dict[str, Any]) -> str:
    return f"/api{share['path']}"


async def full_chat(server: Server, ada: Client) -> tuple[str, Said, str]:
    """Creates a chat with a picture, a thought, a call of a client tool with its result, and an answer."""
    picture = (await ada.json("POST", "/api/uploads", 201, content=PNG))["id"]
    model = server.scripts.model(
        message_of(thinking("a secret thought"), tool_use("look", {"at": "the secret input"}, "c")),
        message_of(text("It is **fine**.")),
    )
    chat = await ada.chat(title="Pictures", system_prompt="the secret prompt")
    blocks = [{"type": "image", "source": {"type": "upload", "id": picture}}, {"type": "text", "text": "Look!"}]
    turn = await ada.say(chat, blocks=blocks, model=model, tools=[LOOK])
    async with ada.follow(turn.stream_url) as events:
        async for event in events:
            if event.name == "action_required":
                break
    result = {"type": "result", "tool_use_id": "c", "output": "the secret result"}
    await ada.json("POST", f"{chat}/turns/{turn.assistant['id']}/actions", 202, json={"actions": [result]})
    await ada.events(turn.stream_url)
    return chat, turn, picture


def types_of(shared: dict[str, Any]) -> list[str]:
    return [block["type"] for turn in shared["turns"] for block in turn["blocks"]]


async def test_a_link_shows_messages_and_texts_and_nothing_else(
    server: Server, ada: Client, nobody: httpx2.AsyncClient
) -> None:
    chat, _, picture = await full_chat(server, ada)
    share = await ada.json("POST", f"{chat}/shares", 201, json={})
    answer = await nobody.get(address(share))
    shared = answer.json()
    assert (shared["title"], shared["live"], shared["more"]) == ("Pictures", False, False)
    assert [[block["text"] for block in turn["blocks"]] for turn in shared["turns"]] == [["Look!"], ["It is **fine**."]]
    assert "secret" not in answer.text
    assert picture not in answer.text
    assert answer.headers["x-robots-tag"] == "noindex"
    refused = await nobody.get(f"{address(share)}/files/{picture}")
    assert refused.status_code == 404


async def test_results_and_files_are_shown_if_they_were_selected(
    server: Server, ada: Client, nobody: httpx2.AsyncClient
) -> None:
    chat, _, picture = await full_chat(server, ada)
    share = await ada.json("POST", f"{chat}/shares", 201, json={"results": True, "files": True})
    shared = (await nobody.get(address(share))).json()
    assert types_of(shared) == ["file", "text", "call", "result", "text"]
    (call, result) = shared["turns"][1]["blocks"][:2]
    assert (call["name"], "the secret input" in call["text"]) == ("look", True)
    assert "the secret result" in result["text"]
    file = await nobody.get(f"{address(share)}/files/{picture}")
    assert (file.content, file.headers["content-type"]) == (PNG, "image/png")
    assert "sandbox" in file.headers["content-security-policy"]
    other = (await ada.json("POST", "/api/uploads", 201, content=PNG + b"other"))["id"]
    assert (await nobody.get(f"{address(share)}/files/{other}")).status_code == 404


async def test_a_snapshot_stays_and_a_live_link_goes_along(ada: Client, nobody: httpx2.AsyncClient) -> None:
    chat = await ada.chat()
    first = await ada.ask(chat, "first")
    snapshot = await ada.json("POST", f"{chat}/shares", 201, json={})
    live = await ada.json("POST", f"{chat}/shares", 201, json={"live": True})
    await ada.ask(chat, "second")
    early = await ada.json("POST", f"{chat}/shares", 201, json={"turn": first.assistant["id"]})
    assert len((await nobody.get(address(snapshot))).json()["turns"]) == 2
    assert len((await nobody.get(address(early))).json()["turns"]) == 2
    answer = await nobody.get(address(live))
    assert len(answer.json()["turns"]) == 4
    tag = {"If-None-Match": answer.headers["etag"]}
    assert (await nobody.get(address(live), headers=tag)).status_code == 304
    await ada.ask(chat, "third")
    assert (await nobody.get(address(live), headers=tag)).status_code == 200


async def test_a_live_link_shows_the_answer_that_is_being_written(
    server: Server, ada: Client, nobody: httpx2.AsyncClient
) -> None:
    pause, chat = Pause(), await ada.chat()
    turn = await ada.say(chat, model=server.scripts.model(pausing(pause, "One ", "two.")))
    async with ada.follow(turn.stream_url) as events:
        async for event in events:
            if event.name == "block_delta":
                break
    problem = await ada.json("POST", f"{chat}/shares", 409, json={})
    assert "live" in problem["detail"]
    live = await ada.json("POST", f"{chat}/shares", 201, json={"live": True})
    (block,) = (await nobody.get(address(live))).json()["turns"][1]["blocks"]
    assert (block["text"], block["open"]) == ("One ", True)
    pause.go.set()
    await ada.events(turn.stream_url)
    (block,) = (await nobody.get(address(live))).json()["turns"][1]["blocks"]
    assert (block["text"], block["open"]) == ("One two.", False)


async def test_links_are_listed_without_their_secrets_and_revoked(
    ada: Client, nobody: httpx2.AsyncClient, database_url: str
) -> None:
    chat, other = await ada.chat(), await ada.chat()
    await ada.ask(chat)
    await ada.ask(other)
    first = await ada.json("POST", f"{chat}/shares", 201, json={})
    second = await ada.json("POST", f"{other}/shares", 201, json={"live": True, "seconds": 3600})
    listed = (await ada.json("GET", "/api/shares"))["shares"]
    assert [each["id"] for each in listed] == [second["id"], first["id"]]
    assert not [each for each in listed if "path" in each]
    assert listed[0]["expires_at"] > listed[0]["created_at"]
    of_chat = (await ada.json("GET", "/api/shares", params={"chat": chat.rpartition("/")[2]}))["shares"]
    assert of_chat == [await ada.json("GET", f"/api/shares/{first['id']}")]
    assert await ada.json("DELETE", f"/api/shares/{first['id']}") == {"revoked": first["id"]}
    gone = await nobody.get(address(first))
    assert (gone.status_code, gone.headers["content-type"]) == (404, "application/problem+json")
    assert (await nobody.get(address(second))).status_code == 200
    trail = await rows_of(database_url, "SELECT kind, actor FROM audit WHERE owner = 'ada' ORDER BY id DESC")
    assert all(each["actor"].startswith("token:") for each in trail[:3])
    assert [each["kind"] for each in trail[:3]] == ["share.revoked", "share.created", "share.created"]


async def rows_of(database_url: str, statement: str, *values: Any) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(database_url)
    try:
        return list(await connection.fetch(statement, *values))
    finally:
        await connection.close()


async def test_an_expired_link_shows_nothing(ada: Client, nobody: httpx2.AsyncClient, database_url: str) -> None:
    chat = await ada.chat()
    await ada.ask(chat)
    share = await ada.json("POST", f"{chat}/shares", 201, json={"seconds": 60})
    await rows_of(database_url, "UPDATE shares SET expires_at = now()")
    assert (await nobody.get(address(share))).status_code == 404


async def test_the_operator_limits_the_life_of_links(database_url: str) -> None:
    async with (
        serving(database_url, sharing=True, share_life=60) as server,
        Client(server.url, None, await server.token("ada"), "ada") as ada,
    ):
        chat = await ada.chat()
        await ada.ask(chat)
        for asked in ({}, {"seconds": 1e6}):
            share = await ada.json("POST", f"{chat}/shares", 201, json=asked)
            life = "SELECT extract(epoch FROM expires_at - created_at) AS life FROM shares WHERE id = $1"
            ((seconds,),) = await rows_of(database_url, life, UUID(share["id"]))
            assert seconds == 60


async def test_deleted_content_is_not_shown(ada: Client, nobody: httpx2.AsyncClient) -> None:
    chat = await ada.chat()
    await ada.ask(chat, "first")
    second = await ada.ask(chat, "second")
    snapshot = await ada.json("POST", f"{chat}/shares", 201, json={})
    live = await ada.json("POST", f"{chat}/shares", 201, json={"live": True})
    await ada.json("DELETE", f"{chat}/turns/{second.user['id']}")
    assert (await nobody.get(address(snapshot))).status_code == 404
    assert len((await nobody.get(address(live))).json()["turns"]) == 2
    await ada.json("DELETE", chat)
    assert (await nobody.get(address(live))).status_code == 404


async def test_nobody_shares_a_chat_or_revokes_a_link_of_another_owner(ada: Client, bob: Client) -> None:
    chat = await ada.chat()
    turn = await ada.ask(chat)
    share = await ada.json("POST", f"{chat}/shares", 201, json={})
    await bob.json("POST", f"{chat}/shares", 404, json={})
    own = await bob.chat()
    await bob.ask(own)
    await bob.json("POST", f"{own}/shares", 404, json={"turn": turn.assistant["id"]})
    await bob.json("GET", f"/api/shares/{share['id']}", 404)
    await bob.json("DELETE", f"/api/shares/{share['id']}", 404)
    assert (await bob.json("GET", "/api/shares"))["shares"] == []
    assert len((await ada.json("GET", "/api/shares"))["shares"]) == 1


async def test_a_credential_of_one_chat_shares_nothing(server: Server, ada: Client) -> None:
    chat = await ada.chat()
    await ada.ask(chat)
    bound = await ada.json("POST", "/api/tokens", json={"seconds": 60, "chat": chat.rpartition("/")[2]})
    async with Client(server.url, None, bound["token"]) as page:
        await page.json("POST", f"{chat}/shares", 403, json={})
        await page.json("GET", "/api/shares", 403)


async def test_wrong_requests_name_the_field(ada: Client) -> None:
    chat = await ada.chat()
    empty = await ada.json("POST", f"{chat}/shares", 409, json={})
    assert "no turn" in empty["detail"]
    turn = await ada.ask(chat)
    both = await ada.json("POST", f"{chat}/shares", 422, json={"live": True, "turn": turn.assistant["id"]})
    assert [each["field"] for each in both["errors"]] == ["turn"]
    for field, value in (("seconds", 0), ("seconds", "x"), ("live", "maybe"), ("unknown", 1)):
        problem = await ada.json("POST", f"{chat}/shares", 422, json={field: value})
        assert field in str(problem)
    assert (await ada.json("GET", "/api/shares", 422, params={"chat": "x"}))["errors"][0]["field"] == "chat"
    await ada.json("POST", f"{chat}/shares", 404, json={"turn": str(uuid4())})


async def test_an_owner_has_a_limited_number_of_links(ada: Client, database_url: str) -> None:
    chat = await ada.chat()
    await ada.ask(chat)
    await rows_of(
        database_url,
        "INSERT INTO shares (id, chat_id, digest, live, results, files)"
        " SELECT gen_random_uuid(), $1, sha256(n::text::bytea), true, false, false FROM generate_series(1, 1000) AS n",
        UUID(chat.rpartition("/")[2]),
    )
    problem = await ada.json("POST", f"{chat}/shares", 409, json={})
    assert "1,000" in problem["detail"]


async def test_many_readers_cost_one_read(
    server: Server, ada: Client, nobody: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.sharing.shares._FRESH", 60.0)
    chat = await ada.chat()
    await ada.ask(chat)
    share = await ada.json("POST", f"{chat}/shares", 201, json={})
    reads = 0
    path = type(server.services.storage.turns).path

    async def counted(*args: Any, **more: Any) -> Any:
        nonlocal reads
        reads += 1
        return await path(*args, **more)

    monkeypatch.setattr(type(server.services.storage.turns), "path", counted)
    answers = await asyncio.gather(*(nobody.get(address(share)) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert reads == 1
    await ada.json("DELETE", f"/api/shares/{share['id']}")
    assert (await nobody.get(address(share))).status_code == 404, "a revoked link is not answered from memory"


async def test_sharing_is_off_unless_the_operator_turns_it_on(database_url: str) -> None:
    async with serving(database_url) as server, Client(server.url, None, await server.token("ada")) as ada:
        chat = await ada.chat()
        problem = await ada.json("POST", f"{chat}/shares", 403, json={})
        assert "TURNSTREAM_SHARING" in problem["detail"]
        await ada.json("GET", "/api/shares", 403)
        await ada.json("GET", "/api/shared/secret", 404)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_of_block_is_shown_or_hidden_on_purpose(kind: str) -> None:
    hidden = {"thought", "note", "other"}
    family = KINDS[kind].family
    shown = view._type_of(Block(0, 1, 1, kind, "x"))
    assert (shown is None) == (family in hidden)


def test_every_family_of_blocks_is_covered() -> None:
    assert {kind.family for kind in KINDS.values()} | {"server_result"} == set(get_args(Family))
