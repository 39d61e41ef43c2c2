"""The feed of an owner: its events, and how a client resumes it."""

import asyncio
import copy
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from tests.extensions.chat_stream.test_chat_stream import author
from tests.integration.api.conftest import NewOwner
from tests.integration.proxy import proxied
from tests.support.effort import FULL
from tests.support.http_client import Client, Event, said
from tests.support.http_server import Server, pausing, serving
from tests.support.locks import Locker
from tests.support.openapi_document import Document
from tests.support.sweeping import swept
from turnstream.extensions.feed.events import FEED_EVENTS
from turnstream.extensions.feed.reader import FeedCursor
from turnstream.extensions.feed.rows import LATEST_COMMIT, OwnerChanges
from turnstream.llm.models.catalog import ProviderModels
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, tool_use
from turnstream.storage.database import Statement
from turnstream.storage.retention import old_deletions

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]

FEED = "/api/stream"
LOOK = {"type": "client", "name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
AGE = Statement("UPDATE deleted_chats SET deleted_at = deleted_at - interval '40 days' RETURNING chat_id")
DELETE = Statement("DELETE FROM chats WHERE id = :chat RETURNING id")
OPEN = {"queued", "running", "waiting"}


def id_of(chat: str) -> str:
    return chat.rpartition("/")[2]


@dataclass
class FeedPicture:
    """The state of a client that has read its list of chats and then follows the feed."""

    cursor: str
    chats: dict[str, Json] = field(default_factory=dict)
    turns: dict[str, Json] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        assert event.id
        match event.name:
            case "chat":
                self.chats[event.data["id"]] = event.data
            case "chat_deleted":
                self.chats.pop(event.data["id"], None)
                self.turns = {id: turn for id, turn in self.turns.items() if turn["chat"] != event.data["id"]}
            case "turn":
                self.turns[event.data["turn"]] = event.data
            case _:
                raise AssertionError(event)
        self.cursor = event.id

    @property
    def open_turns(self) -> set[str]:
        return {id for id, turn in self.turns.items() if turn["status"] in OPEN}


async def read_list(api: Client, limit: int = 200) -> FeedPicture:
    """Reads all pages of the list. The picture has the cursor of the first page."""
    page = await api.json("GET", "/api/chats", params={"limit": limit})
    picture = FeedPicture(page["cursor"])
    while True:
        for chat in page["chats"]:
            assert (chat.pop("excerpt"), chat.pop("jobs")) == (None, 0)
            picture.chats[chat["id"]] = chat
        if page["next"] is None:
            return picture
        page = await api.json("GET", "/api/chats", params={"limit": limit, "before": page["next"]})
        assert page["cursor"] is None


async def take_until(events: AsyncIterator[Event], name: str, **members: Any) -> Event:
    """Returns the first event that has this name and these members."""
    async for event in events:
        if event.name == name and members.items() <= event.data.items():
            return event
    raise AssertionError("the feed ended")


async def test_chats_that_are_made_renamed_and_deleted_are_sent_at_once(api: Client) -> None:
    before = await api.chat(title="Before")
    async with api.follow(FEED) as events:
        chat = await api.chat(title="Ships")
        made = await anext(events)
        assert (made.name, made.data) == ("chat", await api.json("GET", chat))
        await api.json("PATCH", chat, json={"title": "Boats"})
        renamed = await anext(events)
        assert (renamed.data["id"], renamed.data["title"]) == (id_of(chat), "Boats")
        await api.json("DELETE", chat)
        await api.json("DELETE", before)
        deleted = [await anext(events) for _ in range(2)]
        assert [(event.name, event.data) for event in deleted] == [
            ("chat_deleted", {"id": id_of(one)}) for one in (chat, before)
        ]
    assert (await read_list(api)).chats == {}


async def test_a_turn_is_sent_at_its_start_and_wait_and_continuation_and_end(api: Client, server: Server) -> None:
    chat = await api.chat()
    beginning, pause = Pause(), Pause()
    call: Reply = [beginning, *message_of(tool_use("look", {}, "c"))]
    model = server.scripts.model(call, pausing(pause, "Half ", "whole."))
    async with api.follow(FEED) as events:
        new = await api.say(chat, model=model, tools=[LOOK])
        turn = {"chat": id_of(chat), "turn": new.assistant["id"], "role": "assistant"}
        await take_until(events, "chat", id=id_of(chat))
        assert (await take_until(events, "turn", **turn)).data["status"] in {"queued", "running"}
        beginning.go.set()
        await take_until(events, "turn", **turn, status="waiting", stop_reason=None)
        result = {"type": "result", "tool_use_id": "c", "output": "a ship"}
        await api.json("POST", f"{new.url}/actions", 202, json={"actions": [result]})
        await take_until(events, "turn", **turn, status="running")
        pause.go.set()
        await take_until(events, "turn", **turn, status="complete", stop_reason="end_turn")


async def test_a_turn_that_is_cancelled_before_it_runs_is_sent(api: Client, server: Server) -> None:
    chat = await api.chat()
    pause = Pause()
    first = await api.say(chat, model=server.scripts.model(pausing(pause, "One ", "two.")))
    second = await api.say(chat, model="plain", on_busy="enqueue")
    async with api.follow(FEED) as events:
        # if the first turn were cancelled first, the second turn might run and end before its cancellation
        for turn in (second, first):
            assert (await api.post(f"{turn.url}/cancel")).is_success
        ended = {(await take_until(events, "turn", status="cancelled")).data["turn"] for _ in range(2)}
    assert ended == {first.assistant["id"], second.assistant["id"]}


async def test_a_connection_begins_with_the_turns_that_are_open(api: Client, server: Server) -> None:
    pause = Pause()
    chat = await api.chat()
    await api.ask(chat)
    open_turn = await api.say(chat, model=server.scripts.model(pausing(pause, "Half ", "whole.")))
    await pause.reached.wait()
    cursor = (await read_list(api)).cursor
    for start in (None, cursor):
        async with api.follow(FEED, start) as events:
            event = await take_until(events, "turn", turn=open_turn.assistant["id"])
            assert event.data["status"] == "running"
    pause.go.set()


async def test_a_turn_that_ended_meanwhile_is_sent_to_a_client_that_saw_it_open(api: Client, server: Server) -> None:
    pause = Pause()
    chat = await api.chat()
    new = await api.say(chat, model=server.scripts.model(pausing(pause, "Half ", "whole.")))
    await pause.reached.wait()
    async with api.follow(FEED) as events:
        seen = await take_until(events, "turn", turn=new.assistant["id"])
    pause.go.set()
    await api.events(new.stream_url)
    long_ago = FeedCursor.parse(seen.id or "")
    assert long_ago.open == (UUID(new.assistant["id"]),)
    async with api.follow(FEED, seen.id) as events:
        await take_until(events, "turn", turn=new.assistant["id"], status="complete")


async def test_on_one_connection_no_state_is_sent_twice_in_a_row(
    api: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.feed.reader._READER_PAUSE", 0.0)
    chats = [await api.chat() for _ in range(2)]
    last: dict[str, Json] = {}
    async with api.follow(FEED) as events:
        for number in range(5):
            new = await api.say(chats[number % 2])
            await api.json("DELETE", await api.chat())
            async for event in events:
                key = event.data.get("turn") or event.data["id"]
                assert last.get(key) != event.data
                last[key] = event.data
                if key == new.assistant["id"] and event.data["status"] == "complete":
                    break


async def test_the_first_bytes_carry_a_cursor(api: Client) -> None:
    async with api.stream("GET", FEED) as response:
        assert response.headers["cache-control"] == "no-store, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        chunks = response.aiter_bytes()
        received = await anext(chunks)
        while received.count(b"\n\n") < 2:
            received += await anext(chunks)
    found = re.fullmatch(rb"retry: 1000\n\nid: (\S+)\n\n", received)
    assert found
    await api.chat(title="Ships")
    async with api.follow(f"{FEED}?cursor={found[1].decode()}") as events:
        assert (await anext(events)).data["title"] == "Ships"


async def test_the_cursor_of_the_list_leads_on_and_a_search_has_none(api: Client) -> None:
    page = await api.json("GET", "/api/chats")
    assert (await api.json("GET", "/api/chats", params={"q": "ships"}))["cursor"] is None
    chat = await api.chat(title="Ships")
    async with api.follow(FEED, page["cursor"]) as events:
        await take_until(events, "chat", id=id_of(chat))


@pytest.mark.parametrize("overlap", [10, 0])
async def test_a_change_that_is_committed_late_is_sent(
    api: Client, database: Locker, monkeypatch: pytest.MonkeyPatch, overlap: int
) -> None:
    """The change has the time of its statement, but is committed later. Before its commit, the feed sends later
    changes, and a client reads a list. With an overlap of zero, this short delay is like a commit that waits half an
    hour for a standby.
    """
    monkeypatch.setattr("turnstream.extensions.feed.rows.OVERLAP", timedelta(seconds=overlap))
    late, other = await api.chat(title="Late"), await api.chat()
    change = "UPDATE chats SET title = 'Changed', updated_at = clock_timestamp() WHERE id = $1"
    async with api.follow(FEED) as events:
        async with database.holding(change, UUID(id_of(late)), commit=True):
            await api.json("PATCH", other, json={"title": "Early"})
            cursors = [(await take_until(events, "chat", title="Early")).id, (await read_list(api)).cursor]
        await api.json("PATCH", other, json={"title": "Again"})
        await take_until(events, "chat", title="Changed")
    for cursor in cursors:
        async with api.follow(FEED, cursor) as events:
            await take_until(events, "chat", title="Changed")


async def test_a_replica_that_starts_while_a_transaction_is_open_reads_from_an_hour_before(
    api: Client, server: Server, database: Locker
) -> None:
    chat = UUID(id_of(await api.chat()))
    changes = OwnerChanges(server.services.storage.database)
    async with database.holding("UPDATE chats SET updated_at = clock_timestamp() WHERE id = $1", chat, commit=True):
        begun, settled = await changes.time()
        assert settled == begun - LATEST_COMMIT
    while (await changes.time())[1] < begun - timedelta(seconds=1):  # noqa: ASYNC110, other tests use this Postgres too
        await asyncio.sleep(0.01)


async def test_a_chat_that_an_older_version_deleted_is_sent(api: Client, server: Server) -> None:
    chat = await api.chat()
    cursor = (await read_list(api)).cursor
    await server.services.storage.database.row(DELETE, chat=UUID(id_of(chat)))
    async with api.follow(FEED, cursor) as events:
        await take_until(events, "chat_deleted", id=id_of(chat))


@pytest.mark.extensions("ai_sdk")
async def test_a_chat_that_is_made_again_under_its_id_is_there(api: Client, server: Server) -> None:
    cursor = (await read_list(api)).cursor
    body = {"id": "mine", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]}
    assert (await api.post("/api/ai-sdk/chat", json=body)).is_success
    (chat,) = (await read_list(api)).chats
    await api.json("DELETE", f"/api/chats/{chat}")
    assert (await api.post("/api/ai-sdk/chat", json=body)).is_success
    async with api.follow(FEED, cursor) as events:
        assert (await anext(events)).data["id"] == chat
        await take_until(events, "turn", status="complete", chat=chat)


async def test_only_the_owners_changes_are_sent(api: Client, new_owner: NewOwner, server: Server) -> None:
    stranger = await new_owner()
    pause = Pause()
    theirs = await stranger.say(await stranger.chat(), model=server.scripts.model(pausing(pause, "Half ", "whole.")))
    now, _ = await OwnerChanges(server.services.storage.of_owner).time()
    made_up = FeedCursor(now, (UUID(theirs.assistant["id"]), uuid4()))
    async with api.follow(FEED, str(made_up)) as events, stranger.follow(FEED) as their_events:
        pause.go.set()
        await stranger.json("DELETE", await stranger.chat())
        await take_until(their_events, "turn", turn=theirs.assistant["id"], status="complete")
        mine = await api.chat(title="Mine")
        assert (await anext(events)).data["id"] == id_of(mine)
        await api.json("PATCH", mine, json={"title": "Still mine"})
        assert (await anext(events)).data["id"] == id_of(mine)


# --- cursors ---------------------------------------------------------------------------------------------------------

LONG = "A" * 22 * 65


@pytest.mark.parametrize("cursor", ["x", "0", "1-2-3", "5f.A", "5f.~A", ".", f"5f.{LONG}", "fffffffffffffff."])
async def test_text_that_is_no_cursor_is_refused_by_name(api: Client, cursor: str) -> None:
    by_header = await api.get(FEED, headers={"Last-Event-ID": cursor})
    by_query = await api.get(FEED, params={"cursor": cursor})
    assert (by_header.status_code, by_query.status_code) == (400, 400)
    assert by_header.json()["errors"][0]["field"] == "Last-Event-ID"
    assert by_query.json()["errors"][0]["field"] == "cursor"


async def test_a_feed_without_a_token_is_refused(server: Server, document: Document) -> None:
    async with Client(server.url, document) as nobody:
        assert (await nobody.get(FEED)).status_code == 401


@pytest.mark.parametrize("cursor", ["5f.", "fffffffffffff.", "~"])
async def test_a_cursor_that_is_too_old_or_of_another_database_is_answered_with_a_reset(
    api: Client, server: Server, cursor: str
) -> None:
    if cursor == "~":
        cursor = str(FeedCursor((await OwnerChanges(server.services.storage.of_owner).time())[1], None))
    chat = await api.chat(title="Before")
    async with api.follow(FEED, cursor) as events:
        reset = await anext(events)
        assert (reset.name, reset.data) == ("reset", {})
        picture = await read_list(api)
        assert [*picture.chats] == [id_of(chat)]
        await api.json("PATCH", chat, json={"title": "After"})
        assert (await anext(events)).data["title"] == "After"
    async with api.follow(FEED, reset.id) as events:
        await take_until(events, "chat", title="After")


async def test_a_client_that_has_missed_too_many_changes_reads_its_list_again(
    api: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.feed.reader._MOST_MISSED", 2)
    cursor = str(FeedCursor(datetime.now(UTC) - LATEST_COMMIT - timedelta(minutes=1)))
    for _ in range(2):
        await api.chat()
    async with api.follow(FEED, cursor) as events:
        assert (await anext(events)).name == "chat"
    await api.chat()
    async with api.follow(FEED, cursor) as events:
        assert (await anext(events)).name == "reset"


async def test_the_cursor_of_a_list_is_not_answered_with_a_reset_while_a_transaction_is_open(
    api: Client, database: Locker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset would not help, because the next list would have the same cursor."""
    monkeypatch.setattr("turnstream.extensions.feed.reader._MOST_MISSED", 2)
    chat = UUID(id_of(await api.chat()))
    async with database.holding("UPDATE chats SET updated_at = clock_timestamp() WHERE id = $1", chat):
        names = {f"Chat {number}" for number in range(5)}
        for name in names:
            await api.chat(title=name)
        async with api.follow(FEED, (await read_list(api)).cursor) as events:
            while names:
                event = await anext(events)
                assert event.name == "chat"
                names -= {event.data["title"]}


async def test_a_chat_that_is_found_again_and_again_is_read_whole_once(
    api: Client, server: Server, database: Locker
) -> None:
    changes = OwnerChanges(server.services.storage.database)
    chat, held = await api.chat(), UUID(id_of(await api.chat()))
    begun, _ = await changes.time()
    async with database.holding("UPDATE chats SET updated_at = clock_timestamp() WHERE id = $1", held):
        first = await changes.since(api.owner, begun, (), {})
        assert first is not None
        second = await changes.since(api.owner, first.seen_at, (), first.found)
        assert second is not None
        assert UUID(id_of(chat)) in {each.id for each in first.chats}
        assert (second.found, second.chats) == (first.found, [])
        await api.json("PATCH", chat, json={"title": "Changed"})
        third = await changes.since(api.owner, second.seen_at, (), second.found)
        assert third is not None
        assert [each.title for each in third.chats] == ["Changed"]


async def test_more_open_turns_than_a_cursor_names_are_a_reset_for_a_returning_reader(
    api: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.feed.reader._MOST_NAMED", 1)
    monkeypatch.setattr("turnstream.extensions.feed.reader._BATCH", 1)
    pauses = [Pause(), Pause()]
    for pause in pauses:
        await api.say(await api.chat(), model=server.scripts.model(pausing(pause, "Half ", "whole.")))
        await pause.reached.wait()
    async with api.follow(FEED) as events:
        opened = [await anext(events) for _ in pauses]
    async with api.follow(FEED, opened[-1].id) as events:
        assert [(await anext(events)).name for _ in range(3)] == ["reset", "turn", "turn"]
    for pause in pauses:
        pause.go.set()


async def test_an_old_turn_that_a_client_saw_open_is_sent_when_it_has_ended_also_after_a_cut(
    api: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An overlap of zero makes the turns look much older than the list.
    monkeypatch.setattr("turnstream.extensions.feed.rows.OVERLAP", timedelta(0))
    monkeypatch.setattr("turnstream.extensions.feed.reader._BATCH", 1)
    pauses, turns = [Pause(), Pause()], []
    for pause in pauses:
        turns.append(await api.say(await api.chat(), model=server.scripts.model(pausing(pause, "Half ", "whole."))))
        await pause.reached.wait()
    async with api.follow(FEED, (await read_list(api)).cursor) as events:
        first = await take_until(events, "turn")
    for pause, turn in zip(pauses, turns, strict=True):
        pause.go.set()
        await api.events(turn.stream_url)
    async with api.follow(FEED, first.id) as events:
        await take_until(events, "turn", turn=first.data["turn"], status="complete")


async def test_deleted_chats_are_forgotten_after_the_age_of_the_oldest_cursor(api: Client, server: Server) -> None:
    database = server.services.storage.database
    await api.json("DELETE", await api.chat())
    await swept(old_deletions(database))
    assert len(await database.rows(AGE)) > 0
    assert await swept(old_deletions(database)) > 0
    assert await database.rows(AGE) == []


# --- several replicas ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def two_replicas(database_url: str, document: Document) -> AsyncIterator[tuple[Client, Client]]:
    settings: dict[str, Any] = {"poll_interval": 60, "journal_interval": 0.01, "max_retries": 0}
    async with (
        serving(database_url, **settings) as here,
        serving(database_url, **settings) as there,
        Client(here.url, document) as near,
        Client(there.url, document) as far,
    ):
        for server in (here, there):
            server.scripts.offers.append(ProviderModels(ScriptedProvider(author(Random())), ["any"]))
        yield near, far


async def change_everything(near: Client, events: AsyncIterator[Event]) -> None:
    """Changes data through one replica, and waits until the other replica has sent an event for each change."""
    chat = await near.chat(title="Ships")
    await take_until(events, "chat", title="Ships")
    new = await near.say(chat, model="plain")
    await take_until(events, "turn", turn=new.assistant["id"], status="complete")
    await near.json("PATCH", chat, json={"title": "Boats"})
    await take_until(events, "chat", title="Boats")
    await near.json("DELETE", chat)
    await take_until(events, "chat_deleted", id=id_of(chat))


async def test_changes_at_one_replica_reach_the_readers_at_another(
    database_url: str, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.feed.reader._LOOK", 3600.0)
    async with two_replicas(database_url, document) as (near, far), far.follow(FEED) as events:
        await change_everything(near, events)


async def test_a_change_whose_notification_is_lost_is_found_by_looking(
    database_url: str, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.feed.reader._LOOK", 0.02)
    monkeypatch.setattr("turnstream.libraries.broadcast.Broadcast.receive", lambda self, payload: None)
    async with two_replicas(database_url, document) as (near, far), far.follow(FEED) as events:
        await change_everything(near, events)


async def test_while_the_database_is_away_the_feed_waits(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.extensions.feed.reader._LOOK", 0.01)
    async with (
        proxied(database_url) as (url, proxy),
        serving(url) as server,
        Client(server.url) as api,
        api.follow(FEED) as events,
    ):
        await api.chat(title="One")
        await take_until(events, "chat", title="One")
        proxy.cut()
        with capture_logs() as logs:
            while "storage.waits" not in {entry["event"] for entry in logs}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


# --- random schedules ------------------------------------------------------------------------------------------------


class Visitor:
    """A reader that switches replicas, disconnects at any time, and resumes from any of its earlier cursors."""

    def __init__(self, random: Random, clients: list[Client]) -> None:
        self.random = random
        self.clients = clients
        self.pictures: list[FeedPicture] = []

    async def visit(self, over: asyncio.Event) -> None:
        while not (over.is_set() and self.random.random() < 0.3):
            client = self.random.choice(self.clients)
            if not self.pictures or self.random.random() < 0.1:
                self.pictures.append(await read_list(client, limit=self.random.choice([2, 200])))
            picture = self.random.choice(self.pictures) if self.random.random() < 0.3 else self.pictures[-1]
            picture = copy.deepcopy(picture)
            async with client.follow(FEED, picture.cursor) as events:
                for _ in range(self.random.choice([1, 2, 5, 100])):
                    try:
                        picture.take(await asyncio.wait_for(anext(events), self.random.choice([0.01, 0.05, 0.3])))
                    except TimeoutError:
                        break
            self.pictures.append(picture)

    async def assert_all_lead_to(self, chats: dict[str, Json], ended: dict[str, str]) -> None:
        for picture in self.random.sample(self.pictures, min(6, len(self.pictures))):
            client = self.random.choice(self.clients)
            async with client.follow(FEED, picture.cursor) as events:
                while picture.chats != chats or picture.open_turns:
                    picture.take(await anext(events))
            assert {id: turn["status"] for id, turn in picture.turns.items()}.items() <= ended.items()


async def act(random: Random, client: Client, chats: list[str]) -> None:
    """Performs a random action, as a user does."""
    what = random.choice(["make", "say", "say", "say", "rename", "delete", "cancel"])
    if what == "make" or not chats:
        chats.append(await client.chat(title=f"Chat {random.random()}"))
        return
    chat = random.choice(chats)
    match what:
        case "rename":
            await client.json("PATCH", chat, json={"title": f"Title {random.random()}"})
        case "delete":
            chats.remove(chat)
            await client.json("DELETE", chat)
        case "cancel":
            turns = (await client.json("GET", f"{chat}/turns"))["turns"]
            if turns:
                await client.post(f"{chat}/turns/{turns[-1]['id']}/cancel")
        case _:
            await client.post(f"{chat}/turns", json={**said("Hi"), "on_busy": "enqueue", "model": "any"})


async def all_ended(client: Client, chats: list[str]) -> dict[str, str]:
    """Waits for the end of all turns. Returns the status of each assistant turn."""
    statuses = {}
    for chat in chats:
        for turn in (await client.json("GET", f"{chat}/turns"))["turns"]:
            if turn["role"] == "assistant":
                await client.events(f"{chat}/turns/{turn['id']}/stream")
                statuses[turn["id"]] = (await client.json("GET", f"{chat}/turns/{turn['id']}"))["status"]
    return statuses


@pytest.mark.timeout(180)
async def test_any_schedule_of_cuts_leads_to_the_list_of_chats(database_url: str, document: Document) -> None:
    seed = Random().randrange(10**9)
    print(f"seed {seed} repeats what people do, not when it happens")
    random = Random(seed)
    async with two_replicas(database_url, document) as (near, far):
        clients = [near, far]
        chats: list[str] = []
        visitors = [Visitor(Random(random.random()), clients) for _ in range(3)]
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for visitor in visitors:
                group.create_task(visitor.visit(over))
            for _ in range(30 if FULL else 12):
                await act(random, random.choice(clients), chats)
                await asyncio.sleep(random.random() * 0.05)
            ended = await all_ended(near, chats)
            over.set()
        listed = (await read_list(near)).chats
        assert listed.keys() == set(map(id_of, chats))
        for visitor in visitors:
            await visitor.assert_all_lead_to(listed, ended)


# --- the documentation page ------------------------------------------------------------------------------------------


async def test_the_protocol_names_every_event_of_the_feed_and_each_of_its_members() -> None:
    page = (Path(__file__).parents[3] / "docs/protocol.md").read_text(encoding="utf-8")
    section = page.split("\n## The feed of an owner\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    described = {name: set(re.findall(r"`(\w+)`", members)) for name, members in rows}
    assert described.keys() == FEED_EVENTS.keys()
    for name, members in described.items():
        assert set(FEED_EVENTS[name].model_fields) <= members, name
