"""Forks: the copy of a path or of a turn, and later changes of the copy and of the original."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.extensions.chat_stream.test_chat_stream import take_until
from tests.integration.api.chat_picture import ChatPicture
from tests.integration.api.conftest import NewOwner
from tests.integration.api.test_attachments import PNG, image
from tests.support.http_client import Client, Said, words_of
from tests.support.http_server import Server, pausing
from tests.support.sweeping import swept
from turnstream.domain.errors import NotFound
from turnstream.extensions.retention.unused import unused_uploads
from turnstream.libraries.copies.cutting import LEFT_OUT, cut_after
from turnstream.libraries.copies.rows import Fork, Forks
from turnstream.scripted import Pause, message_of, text, tool_use
from turnstream.storage.database import Statement

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]

LOOK = {"type": "client", "name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
ADD_SUMMARY = Statement(
    """
    INSERT INTO blocks (turn_id, index, round, attempt, type, text, data)
    VALUES (:turn, 1, 1, 1, 'summary', 'In short.', CAST(:data AS json)) RETURNING turn_id
    """
)


async def path_of(api: Client, chat: str) -> list[Json]:
    turns: list[Json] = (await api.json("GET", f"{chat}/turns"))["turns"]
    return turns


def chat_of(exchange: Json) -> str:
    return f"/api/chats/{exchange['assistant_turn']['chat_id']}"


async def with_tools(api: Client, server: Server, chat: str) -> Said:
    """Creates a turn of two rounds: a text, two calls, their results, and another text."""
    calls = tool_use("doc_tree", {}, "call_1"), tool_use("doc_view", {"path": "nowhere"}, "call_2")
    model = server.scripts.model(message_of(text("I look."), *calls), message_of(text("Nothing.")))
    return await api.ask(chat, "Any?", model=model)


async def test_a_new_chat_has_copies_of_the_turns_and_continues_separately(api: Client, server: Server) -> None:
    chat = await api.chat(title="Ships", system_prompt="Be brief.", settings={"model": "plain"})
    await api.ask(chat, "One")
    second = await with_tools(api, server, chat)
    last = await api.ask(chat, "Three")
    fork = await api.json("POST", f"{second.url}/fork", 201, json={"into": "chat"})
    originals, copies = (await path_of(api, chat))[:4], await path_of(api, chat_of(fork))
    assert len(copies) == 4
    assert {copy["id"] for copy in copies} & {turn["id"] for turn in originals} == set()
    for copy, original in zip(copies, originals, strict=True):
        assert copy["forked_from"] == original["id"]
        for member in ("role", "status", "stop_reason", "blocks", "created_at", "model", "error"):
            assert copy[member] == original[member]
        assert [round["round"] for round in copy["rounds"]] == [round["round"] for round in original["rounds"]]
    assert (fork["user_turn"]["id"], fork["assistant_turn"]["id"]) == (copies[-2]["id"], copies[-1]["id"])
    assert (copies[-1]["usage"], copies[-1]["cost"], originals[-1]["usage"] != {}) == ({}, 0, True)
    made = await api.json("GET", chat_of(fork))
    assert (made["title"], made["system_prompt"], made["settings"]) == ("Ships (fork)", "Be brief.", {"model": "plain"})
    whole = await api.json("GET", f"{chat_of(fork)}/turns/{copies[-1]['id']}/results/call_1")
    assert whole["text"] == originals[-1]["blocks"][3]["text"]
    await api.ask(chat_of(fork), "And then?")
    assert [turn["id"] for turn in await path_of(api, chat)][-1] == last.assistant["id"]
    await api.json("DELETE", chat)
    assert len(await path_of(api, chat_of(fork))) == 6


@pytest.mark.parametrize(
    ("block", "kinds"),
    [
        (0, ["text"]),
        (1, ["text", "tool_use", "tool_result"]),
        (2, ["text", "tool_use", "tool_use", "tool_result", "tool_result"]),
        (3, ["text", "tool_use", "tool_use", "tool_result", "tool_result"]),
        (4, ["text", "tool_use", "tool_use", "tool_result", "tool_result"]),
        (5, ["text", "tool_use", "tool_use", "tool_result", "tool_result", "text"]),
    ],
)
async def test_a_branch_ends_at_any_block_and_can_be_continued(
    api: Client, server: Server, block: int, kinds: list[str]
) -> None:
    chat = await api.chat()
    turn = await with_tools(api, server, chat)
    fork = await api.json("POST", f"{turn.url}/fork", 201, json={"block": block})
    copy = fork["assistant_turn"]
    assert [each["type"] for each in copy["blocks"]] == kinds
    assert copy["blocks"][: block + 1] == turn.assistant["blocks"][: block + 1]
    assert {each["text"] for each in copy["blocks"][block + 1 :]} <= {LEFT_OUT}
    assert copy["stop_reason"] == ("end_turn" if block == 5 else "forked")
    assert copy["parent_id"] == turn.user["id"]
    stored = await api.json("GET", f"{chat}/turns/{copy['id']}")
    assert stored["siblings"] == [turn.assistant["id"], copy["id"]]
    model, provider = server.scripts.provider(message_of(text("Yes.")))
    following = await api.ask(chat, "And then?", model=model)
    assert following.user["parent_id"] == copy["id"]
    assert words_of(following.assistant) == "Yes."
    called = [each for message in provider.requests[0].messages for each in message.blocks if each.is_call]
    assert len(called) == kinds.count("tool_use")


@pytest.mark.parametrize("into", ["branch", "chat"])
async def test_a_copied_message_is_answered_again(api: Client, server: Server, into: str) -> None:
    chat = await api.chat(title="Ships")
    await api.ask(chat, "One")
    model = server.scripts.model(message_of(text("Two.")), message_of(text("Other.")))
    turn = await api.ask(chat, "Two", model=model)
    fork = await api.json("POST", f"{turn.user_url}/fork", 201, json={"into": into})
    await api.events(fork["stream_url"])
    path = await path_of(api, chat_of(fork))
    assert [words_of(each) for each in path] == ["One", "Hello.", "Two", "Other."]
    assert path[2]["forked_from"] == turn.user["id"]
    assert path[3]["forked_from"] is None
    assert path[3]["usage"] != {}
    assert (chat_of(fork) == chat) == (into == "branch")
    if into == "branch":
        assert path[2]["siblings"] == [turn.user["id"], path[2]["id"]]


async def test_of_a_turn_that_has_not_ended_complete_rounds_are_copied(api: Client, server: Server) -> None:
    chat = await api.chat()
    asking = server.scripts.model(message_of(text("Well."), tool_use("look", {}, "c")))
    turn = await api.say(chat, model=asking, tools=[LOOK])
    async with api.follow(turn.stream_url) as events:
        async for event in events:
            if event.name == "action_required":
                break
    refused = await api.json("POST", f"{turn.url}/fork", 409, json={"into": "chat"})
    assert "has not ended" in refused["detail"]
    fork = await api.json("POST", f"{turn.url}/fork", 201, json={"into": "chat", "block": 1})
    copy = fork["assistant_turn"]
    assert (copy["status"], copy["stop_reason"], copy["actions"]) == ("complete", "forked", [])
    assert [(each["type"], each["text"]) for each in copy["blocks"]][-1] == ("tool_result", LEFT_OUT)
    assert (await api.json("GET", turn.url))["status"] == "waiting"
    assert words_of((await api.ask(chat_of(fork), "Go on", model="plain")).assistant) == "Hello."
    pause = Pause()
    running = await api.say(await api.chat(), model=server.scripts.model(pausing(pause, "One ", "two.")))
    await pause.reached.wait()
    await api.json("POST", f"{running.url}/fork", 422, json={"block": 0})
    await api.json("POST", f"{running.url}/cancel", 202)


async def test_a_fork_is_made_once_for_a_key(api: Client) -> None:
    turn = await api.ask(await api.chat(title="Ships"))
    key = {"Idempotency-Key": str(uuid4())}
    body = {"into": "chat", "title": "Boats"}
    first = await api.json("POST", f"{turn.url}/fork", 201, json=body, headers=key)
    assert await api.json("POST", f"{turn.url}/fork", 201, json=body, headers=key) == first
    assert (await api.json("GET", chat_of(first)))["title"] == "Boats"
    await api.json("POST", f"{turn.url}/fork", 422, json={"into": "chat"}, headers=key)
    assert len((await api.json("GET", "/api/chats"))["chats"]) == 2


async def test_a_fork_that_cannot_be_is_refused_with_a_reason(
    api: Client, server: Server, new_owner: NewOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await api.chat()
    turn = await api.ask(chat)
    refused = await api.json("POST", f"{turn.url}/fork", 422, json={"block": 1})
    assert refused["errors"][0]["field"] == "block"
    refused = await api.json("POST", f"{turn.url}/fork", 422, json={"title": "Boats"})
    assert refused["errors"][0]["field"] == "title"
    await api.json("POST", f"{chat}/turns/{uuid4()}/fork", 404, json={})
    await (await new_owner()).json("POST", f"{turn.url}/fork", 404, json={})
    monkeypatch.setattr("turnstream.libraries.copies.rows._MOST_COPIED", 1)
    refused = await api.json("POST", f"{turn.url}/fork", 422, json={"into": "chat"})
    assert "at most 1 turns" in refused["errors"][0]["message"]
    storage = server.services.storage
    original = await storage.turns.get(api.owner, UUID(chat.rpartition("/")[2]), UUID(turn.assistant["id"]))
    await api.json("DELETE", turn.url)
    with pytest.raises(NotFound, match="no turn"):
        await Forks(storage.of_owner).make(api.owner, Fork(cut_after(original, None), new_chat=False), None)


async def test_attachments_are_shared_and_stay_as_long_as_one_of_the_chats(api: Client, server: Server) -> None:
    upload = await api.json("POST", "/api/uploads", 201, content=PNG + uuid4().bytes)
    picture = image({"type": "upload", "id": upload["id"]})
    chat = await api.chat()
    turn = await api.ask(chat, blocks=[picture, {"type": "text", "text": "What is this?"}])
    fork = await api.json("POST", f"{turn.url}/fork", 201, json={"into": "chat"})
    for deleted, status in ((chat, 200), (chat_of(fork), 404)):
        await api.json("DELETE", deleted)
        await swept(unused_uploads(server.services.storage.database, -60))
        assert (await api.get(f"/api/uploads/{upload['id']}")).status_code == status


async def test_a_summary_replaces_the_copies_of_its_turns(api: Client, server: Server) -> None:
    chat = await api.chat()
    first, second = await api.ask(chat, "One"), await api.ask(chat, "Two")
    data = f'{{"type":"summary","through":"{first.assistant["id"]}"}}'
    database = server.services.storage.database
    assert await database.row(ADD_SUMMARY, turn=UUID(second.assistant["id"]), data=data)
    fork = await api.json("POST", f"{second.url}/fork", 201, json={"into": "chat"})
    path = await path_of(api, chat_of(fork))
    assert path[-1]["blocks"][1]["data"]["through"] == path[1]["id"]
    again = await api.json("POST", f"{second.url}/fork", 201, json={})
    assert again["assistant_turn"]["blocks"][1]["data"]["through"] == first.assistant["id"]


async def test_readers_of_the_chat_and_of_the_new_one_assemble_the_copies(api: Client, server: Server) -> None:
    chat = await api.chat()
    turn = await with_tools(api, server, chat)
    picture = ChatPicture()
    async with api.follow(f"{chat}/stream") as events:
        await take_until(events, "turn_complete", picture)
        branch = await api.json("POST", f"{turn.url}/fork", 201, json={"block": 3})
        await take_until(events, "turn_complete", picture)
    picture.assert_shows([*await path_of(api, chat), turn.assistant])
    assert branch["assistant_turn"]["id"] in picture.turns
    fork = await api.json("POST", f"{turn.url}/fork", 201, json={"into": "chat"})
    picture = ChatPicture()
    async with api.follow(f"{chat_of(fork)}/stream") as events:
        await take_until(events, "turn_complete", picture)
    picture.assert_shows(await path_of(api, chat_of(fork)))


async def test_a_fork_may_answer_with_the_stream(api: Client) -> None:
    turn = await api.ask(await api.chat())
    headers = {"Accept": "text/event-stream"}
    async with api.stream("POST", f"{turn.user_url}/fork", json={}, headers=headers) as response:
        body = (await response.aread()).decode()
    assert "event: turn_complete" in body
