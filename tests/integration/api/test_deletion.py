"""What becomes of readers, runs and rows when a chat or a branch is deleted."""

import asyncio
from contextlib import aclosing
from typing import Any
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from tests.extensions.chat_stream.test_chat_stream import take_until, two_replicas
from tests.extensions.feed.test_feed import take_until as take_feed_until
from tests.integration.api.chat_picture import ChatPicture, pictured
from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client, Event, Parser, Said
from tests.support.http_server import Server, pausing, serving
from tests.support.openapi_document import Document
from turnstream.domain.errors import NotFound
from turnstream.domain.turns import Turn
from turnstream.extensions.chat_stream.beginnings import StreamedTurns
from turnstream.extensions.chat_stream.cursor import parse_cursor
from turnstream.extensions.chat_stream.endpoints import frame, sources_of
from turnstream.extensions.chat_stream.reader import ChatReader
from turnstream.libraries.dialects.branch_rows import Branches
from turnstream.scripted import Pause, message_of, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]

LOOK = {"type": "client", "name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
# The names of log events that only a faulty server writes.
TROUBLES = {"turn.failed", "turn.not_tidied", "turn.abandoned", "claim.lost"}


async def until_first_delta(client: Client, turn: Said, seen: asyncio.Event) -> list[Event]:
    """Collects all events of the turn. Sets `seen` at its first text."""
    events = []
    async with client.follow(turn.stream_url) as stream:
        async for event in stream:
            events.append(event)
            if event.name == "block_delta":
                seen.set()
    return events


@pytest.mark.parametrize("deleted_at", ["here", "there"])
async def test_a_running_turn_that_loses_its_chat_ends_its_streams_on_every_replica(
    database_url: str, document: Document, deleted_at: str
) -> None:
    async with two_replicas(database_url, document) as (here, near, far):
        chat, pause = await near.chat(), Pause()
        turn = await near.say(chat, model=here.scripts.model(pausing(pause, "Half ", "whole.")))
        seen = [asyncio.Event(), asyncio.Event()]
        with capture_logs() as logs:
            readings = [
                asyncio.create_task(until_first_delta(client, turn, event))
                for client, event in zip((near, far), seen, strict=True)
            ]
            await asyncio.gather(*(event.wait() for event in seen))
            await (near if deleted_at == "here" else far).json("DELETE", chat)
            for events in await asyncio.gather(*readings):
                *_, stop, end = [event for event in events if event.id]
                assert (stop.name, stop.data["interrupted"]) == ("block_stop", True)
                assert (end.name, end.data["stop_reason"]) == ("turn_cancelled", "deleted")
            while views := here.services.live.directory.here():
                await views[0].wakeup.wait()
        assert {entry["event"] for entry in logs} & TROUBLES == set()
        assert "turn.deleted" in {entry["event"] for entry in logs}
        for client in (near, far):
            assert (await client.get(turn.stream_url)).status_code == 404


async def test_a_waiting_or_queued_turn_that_loses_its_chat_ends_its_streams(
    database_url: str, document: Document
) -> None:
    async with serving(database_url, concurrent_turns=1) as server, Client(server.url, document) as api:
        asking = server.scripts.model(message_of(tool_use("look", {}, "c")))
        chats = [await api.chat(), await api.chat(), await api.chat()]
        waiting = await api.say(chats[0], model=asking, tools=[LOOK])
        async with api.follow(waiting.stream_url) as events:
            async for event in events:
                if event.name == "action_required":
                    break
            await api.json("DELETE", chats[0])
            assert [event.data["stop_reason"] async for event in events if event.id] == ["deleted"]
        pause = Pause()
        running = await api.say(chats[1], model=server.scripts.model(pausing(pause, "One ", "two.")))
        await pause.reached.wait()
        queued = await api.say(chats[2])
        async with api.follow(queued.stream_url) as events:
            assert (await anext(events)).name == "turn_start"
            await api.json("DELETE", chats[2])
            assert [(event.name, event.data["stop_reason"]) async for event in events] == [
                ("turn_cancelled", "deleted")
            ]
        await api.json("POST", f"{running.url}/cancel", 202)


# --- a branch --------------------------------------------------------------------------------------------------------


def ids_of(turns: list[Json]) -> list[str]:
    return [turn["id"] for turn in turns]


async def path_of(api: Client, chat: str) -> list[str]:
    return ids_of((await api.json("GET", f"{chat}/turns"))["turns"])


async def test_a_turn_is_deleted_with_all_that_follow_it(api: Client) -> None:
    chat = await api.chat()
    first, second, third = [await api.ask(chat, words) for words in ("One", "Two", "Three")]
    assert await api.json("DELETE", second.user_url) == {"deleted": second.user["id"], "turns": 4}
    assert await path_of(api, chat) == ids_of([first.user, first.assistant])
    for turn in (second, third):
        assert (await api.get(turn.url)).status_code == 404
        assert (await api.get(turn.stream_url)).status_code == 404
        assert (await api.delete(turn.url)).status_code == 404
    fourth = await api.ask(chat, "Four")
    assert fourth.user["parent_id"] == first.assistant["id"]


async def test_another_answer_stays_and_with_the_last_one_the_message_is_deleted(api: Client) -> None:
    chat = await api.chat()
    first, second = await api.ask(chat, "One"), await api.ask(chat, "Two")
    again = await api.json("POST", f"{second.url}/regenerate", 201, json={})
    await api.events(again["stream_url"])
    assert (await api.json("DELETE", second.url))["turns"] == 1
    kept = await api.json("GET", f"{chat}/turns/{again['assistant_turn']['id']}")
    assert kept["siblings"] == [kept["id"]]
    assert (await api.json("DELETE", f"{chat}/turns/{kept['id']}"))["turns"] == 2
    assert await path_of(api, chat) == ids_of([first.user, first.assistant])
    assert (await api.json("DELETE", first.url))["turns"] == 2
    assert await path_of(api, chat) == []
    assert (await api.ask(chat, "From the beginning")).user["parent_id"] is None


async def test_a_large_branch_is_deleted_in_small_transactions(
    api: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.libraries.dialects.branch_rows._BATCH", 3)
    chat = await api.chat()
    first = await api.ask(chat, "One")
    rest = [await api.ask(chat, "More") for _ in range(4)]
    branch = await api.ask(chat, "Beside", parent_id=rest[0].assistant["id"])
    counts = []
    identities = [UUID(part) for part in (chat.rpartition("/")[2], rest[0].assistant["id"])]
    async for count, _ in Branches(server.services.storage.of_owner).delete(api.owner, *identities):
        counts.append(count)
        if len(counts) == 1:  # the rest of the chat can be continued during the deletion
            assert (await api.ask(chat, "Late", parent_id=rest[0].assistant["id"])).assistant["status"] == "complete"
    assert counts == [3, 3, 3, 3, 0]
    assert await path_of(api, chat) == ids_of([first.user, first.assistant])
    assert (await api.get(branch.url)).status_code == 404


async def test_a_running_branch_is_stopped_wherever_it_runs(database_url: str, document: Document) -> None:
    async with two_replicas(database_url, document) as (here, near, far):
        chat, pause = await near.chat(), Pause()
        first = await near.ask(chat, model="plain")
        turn = await near.say(chat, model=here.scripts.model(pausing(pause, "Half ", "whole.")))
        seen = asyncio.Event()
        with capture_logs() as logs:
            reading = asyncio.create_task(until_first_delta(far, turn, seen))
            await seen.wait()
            await far.json("DELETE", turn.user_url)
            end = (await reading)[-1]
            assert (end.name, end.data["stop_reason"]) == ("turn_cancelled", "deleted")
            while views := here.services.live.directory.here():
                await views[0].wakeup.wait()
        assert {entry["event"] for entry in logs} & TROUBLES == set()
        assert await path_of(near, chat) == ids_of([first.user, first.assistant])
        assert (await far.ask(chat, model="plain")).assistant["status"] == "complete"


async def test_a_branch_of_another_owner_or_chat_is_not_there(api: Client, new_owner: NewOwner) -> None:
    chat, other = await api.chat(), await api.chat()
    turn = await api.ask(chat)
    for path in (
        f"{other}/turns/{turn.user['id']}",
        f"{chat}/turns/{uuid4()}",
        f"/api/chats/{uuid4()}/turns/{uuid4()}",
    ):
        assert (await api.delete(path)).status_code == 404
    assert (await (await new_owner()).delete(turn.user_url)).status_code == 404
    assert await path_of(api, chat) == ids_of([turn.user, turn.assistant])


async def test_an_answer_that_is_deleted_meanwhile_is_not_generated_again(api: Client, server: Server) -> None:
    chat = await api.chat()
    turn = await api.ask(chat)
    exchanges, identity = server.services.storage.exchanges, UUID(chat.rpartition("/")[2])
    answer = await exchanges.answer(api.owner, identity, UUID(turn.assistant["id"]))
    await api.json("DELETE", turn.url)
    with pytest.raises(NotFound, match="no turn"):
        async with exchanges.beside(api.owner, answer, None):
            raise AssertionError("there is nothing to stand beside")


async def test_readers_of_the_chat_get_the_deleted_turns(api: Client, server: Server) -> None:
    chat, pause, other = await api.chat(), Pause(), Pause()
    first = await api.ask(chat)
    picture = ChatPicture()
    async with api.follow(f"{chat}/stream") as events:
        await take_until(events, "turn_complete", picture)
        running = await api.say(chat, model=server.scripts.model(pausing(pause, "Half ", "whole.")))
        await take_until(events, "block_delta", picture)
        beside = await api.say(chat, model=server.scripts.model(pausing(other, "One ", "two.")), on_busy="branch")
        await take_until(events, "block_delta", picture)
        await api.json("DELETE", running.user_url)
        (*_, deleted) = await take_until(events, "turns_deleted", picture)
        assert set(deleted.data["turns"]) == {running.user["id"], running.assistant["id"]}
        other.go.set()
        await take_until(events, "turn_complete", picture)
        last = await api.ask(chat, "On", model="plain")
        await take_until(events, "turn_complete", picture)
    expected = [first.user, first.assistant, beside.user, beside.assistant, last.user, last.assistant]
    assert [*picture.turns] == ids_of(expected)


async def test_a_cursor_from_before_a_deletion_stays_valid(api: Client, server: Server) -> None:
    chat, pause = await api.chat(), Pause()
    await api.ask(chat)
    pictures = [ChatPicture()]
    running = await api.say(chat, model=server.scripts.model(pausing(pause, "Half ", "whole.")))
    async with api.follow(f"{chat}/stream") as events:
        async for event in events:
            pictures.append(pictures[-1].copy())
            pictures[-1].take(event)
            if event.name == "block_delta" and event.data["turn"] == running.assistant["id"]:
                break
    page = await api.json("GET", f"{chat}/turns")
    pictures.append(pictured(page["turns"], page["cursor"]))
    await api.json("DELETE", running.user_url)
    last = await api.ask(chat, "On")
    turns = [*(await api.json("GET", f"{chat}/turns"))["turns"]]
    for picture in pictures:
        async with api.follow(f"{chat}/stream", picture.cursor) as events:
            while last.assistant["id"] not in picture.turns or not picture.all_ended:
                picture.take(await anext(events))
        picture.assert_shows(turns)


async def test_the_feed_sends_the_end_of_an_open_turn_that_was_deleted(api: Client, server: Server) -> None:
    chat, pause = await api.chat(), Pause()
    running = await api.say(chat, model=server.scripts.model(pausing(pause, "Half ", "whole.")))
    expected = {"turn": running.assistant["id"], "status": "cancelled", "stop_reason": "deleted"}
    async with api.follow("/api/stream") as events:
        opened = await take_feed_until(events, "turn", turn=running.assistant["id"])
        assert opened.data["status"] in {"queued", "running"}
        await api.json("DELETE", running.user_url)
        await take_feed_until(events, "turn", **expected)
    async with api.follow("/api/stream", opened.id) as events:  # the client was disconnected during the deletion
        await take_feed_until(events, "turn", **expected)


async def test_a_turn_deleted_while_a_cursor_is_opened_has_no_further_event(api: Client, server: Server) -> None:
    chat, pause, services = await api.chat(), Pause(), server.services
    running = await api.say(chat, model=server.scripts.model(pausing(pause, "Half ", "whole.")))
    await pause.reached.wait()
    page = await api.json("GET", f"{chat}/turns")

    class Late(StreamedTurns):
        async def get(self, owner: str, chat_id: UUID, turn: UUID) -> Turn:
            await api.json("DELETE", running.url)
            return await super().get(owner, chat_id, turn)

    sources = sources_of(services)._replace(turns=Late(services.storage.database))
    reader = ChatReader(sources, api.owner, UUID(chat.rpartition("/")[2]), parse_cursor(page["cursor"]), frame)
    await reader.open()
    frames = reader.frames()
    async with aclosing(frames):
        events = Parser().feed(await anext(frames))
    assert [event.name for event in events] == ["chat", "turns_deleted"]
