import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client, said, turn_url
from tests.support.http_server import Server, pausing
from tests.support.locks import Locker
from turnstream.domain.errors import StorageUnavailable
from turnstream.scripted import Pause
from turnstream.storage.chats.exchanges import Exchange, Exchanges

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = {"Idempotency-Key": "the first try"}


def exchange(answer: dict[str, Any]) -> tuple[str, str]:
    return answer["user_turn"]["id"], answer["assistant_turn"]["id"]


async def places(api: Client) -> dict[str, dict[str, Any]]:
    chat = await api.chat()
    turn = await api.ask(await api.chat())
    return {"/api/turns": said("Hi"), f"{chat}/turns": said("Hi"), f"{turn.url}/regenerate": {}}


async def test_the_same_request_twice_makes_one_exchange(api: Client) -> None:
    for place, (path, body) in enumerate((await places(api)).items()):
        key = {"Idempotency-Key": f"try {place}"}
        first = await api.json("POST", path, 201, json=body, headers=key)
        await api.events(first["stream_url"])
        second = await api.post(path, json=body, headers=key)
        assert second.status_code == 201
        assert exchange(second.json()) == exchange(first)
        assert second.json()["stream_url"] == first["stream_url"]
        assert second.headers["location"] == turn_url(first["assistant_turn"])


async def test_a_repeated_request_is_answered_while_the_first_one_still_runs(api: Client, server: Server) -> None:
    pause, chat = Pause(), await api.chat()
    body = {**said("Hi"), "model": server.scripts.model(pausing(pause, "One ", "two."))}
    first = await api.json("POST", f"{chat}/turns", 201, json=body, headers=KEY)
    await pause.reached.wait()
    assert exchange(await api.json("POST", f"{chat}/turns", 201, json=body, headers=KEY)) == exchange(first)
    pause.go.set()


async def test_a_message_stored_before_an_outage_of_the_database_is_not_stored_twice(
    api: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Exchanges.begin

    async def lost(*arguments: Any) -> Exchange | None:
        assert await begin(*arguments)
        raise StorageUnavailable("connection was closed in the middle of operation")

    with monkeypatch.context() as away:
        away.setattr(Exchanges, "begin", lost)
        refused = await api.json("POST", "/api/turns", 503, json=said("Hi"), headers=KEY)
    assert "`Idempotency-Key`" in refused["detail"]
    (chat,) = (await api.json("GET", "/api/chats"))["chats"]
    again = await api.json("POST", "/api/turns", 201, json=said("Hi"), headers=KEY)
    assert again["assistant_turn"]["chat_id"] == chat["id"]
    assert "event: turn_complete\n" in (await api.get(again["stream_url"])).text


async def test_a_repeated_request_may_accept_the_stream_instead(api: Client) -> None:
    first = await api.json("POST", "/api/turns", 201, json=said("Hi"), headers=KEY)
    streamed = await api.post("/api/turns", json=said("Hi"), headers={**KEY, "Accept": "text/event-stream"})
    assert first["assistant_turn"]["id"] in streamed.text
    assert "event: turn_complete\n" in streamed.text


async def test_a_key_is_for_one_request_only(api: Client) -> None:
    for place, (path, body) in enumerate((await places(api)).items()):
        key = {"Idempotency-Key": f"try {place}"}
        await api.json("POST", path, 201, json=body, headers=key)
        refused = await api.json("POST", path, 422, json={**body, "params": {"max_tokens": 9}}, headers=key)
        assert (refused["code"], refused["errors"][0]["field"]) == ("idempotency_key_reused", "Idempotency-Key")
        elsewhere = await api.json("POST", f"{await api.chat()}/turns", 422, json=said("Hi"), headers=key)
        assert elsewhere["errors"][0]["field"] == "Idempotency-Key"


async def test_a_refused_request_leaves_its_key_free(api: Client) -> None:
    await api.json("POST", "/api/turns", 422, json={**said("Hi"), "model": "none such"}, headers=KEY)
    await api.json("POST", "/api/turns", 201, json=said("Hi"), headers=KEY)


async def test_keys_of_different_owners_have_nothing_to_do_with_each_other(api: Client, new_owner: NewOwner) -> None:
    mine = await api.json("POST", "/api/turns", 201, json=said("Hi"), headers=KEY)
    theirs = await (await new_owner()).json("POST", "/api/turns", 201, json=said("Ho"), headers=KEY)
    assert exchange(mine) != exchange(theirs)


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "\x85"])
async def test_a_key_that_is_no_key_is_refused_by_name(api: Client, key: str) -> None:
    refused = await api.json(
        "POST", "/api/turns", 422, json=said("Hi"), headers=[(b"Idempotency-Key", key.encode("latin-1"))]
    )
    assert refused["errors"][0]["field"] == "Idempotency-Key"


@pytest.mark.parametrize("key", ["x", "x" * 255, "ÿ" * 255, "'; --"])
async def test_a_key_may_be_any_printable_text(api: Client, key: str) -> None:
    headers = [(b"Idempotency-Key", key.encode("latin-1"))]
    first = await api.json("POST", "/api/turns", 201, json=said("Hi"), headers=headers)
    assert exchange(await api.json("POST", "/api/turns", 201, json=said("Hi"), headers=headers)) == exchange(first)


async def test_two_of_the_same_at_once_make_one_exchange_in_a_chat(api: Client, database: Locker) -> None:
    chat = await api.chat()
    lock = "SELECT FROM chats WHERE id = $1 FOR UPDATE"
    async with database.holding(lock, UUID(chat.rpartition("/")[2])):
        both = [asyncio.create_task(api.json("POST", f"{chat}/turns", 201, json=said("Hi"), headers=KEY)) for _ in "ab"]
        await database.waiting(2)
    first, second = await asyncio.gather(*both)
    assert exchange(first) == exchange(second)
    assert len((await api.json("GET", f"{chat}/turns"))["turns"]) == 2


async def test_two_of_the_same_at_once_make_one_chat(api: Client, database: Locker) -> None:
    other = await api.ask(await api.chat())
    lock = "INSERT INTO idempotency_keys (owner, key, digest, turn_id) VALUES ($1, $2, '', $3)"
    async with database.holding(lock, api.owner, KEY["Idempotency-Key"], UUID(other.assistant["id"])):
        both = [asyncio.create_task(api.json("POST", "/api/turns", 201, json=said("Hi"), headers=KEY)) for _ in "ab"]
        await database.waiting(2)
    first, second = await asyncio.gather(*both)
    assert exchange(first) == exchange(second)
    assert len((await api.json("GET", "/api/chats"))["chats"]) == 2


async def test_without_a_key_the_same_request_twice_makes_two(api: Client) -> None:
    first = await api.json("POST", "/api/turns", 201, json=said("Hi"))
    assert exchange(await api.json("POST", "/api/turns", 201, json=said("Hi"))) != exchange(first)


async def test_a_key_is_free_again_when_its_chat_is_deleted(api: Client) -> None:
    first = await api.json("POST", "/api/turns", 201, json=said("Hi"), headers=KEY)
    await api.json("DELETE", f"/api/chats/{first['user_turn']['chat_id']}")
    assert exchange(await api.json("POST", "/api/turns", 201, json=said(str(uuid4())), headers=KEY)) != exchange(first)
