"""The stream of a chat: its events, and how a client resumes it."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from tests.integration.api.chat_picture import ChatPicture, pictured
from tests.integration.api.conftest import NewOwner
from tests.integration.proxy import proxied
from tests.support.effort import FULL, tries
from tests.support.http_client import Client, Event, Parser, said, turn_url
from tests.support.http_server import Server, pausing, serving
from tests.support.openapi_document import Document
from turnstream.api.events import EVENTS
from turnstream.domain.errors import PermanentError, TransientError
from turnstream.domain.events import Notice
from turnstream.domain.turns import Turn
from turnstream.extensions.chat_stream import reader as chat_tail
from turnstream.extensions.chat_stream.beginnings import StreamedTurns
from turnstream.extensions.chat_stream.cursor import parse_cursor
from turnstream.extensions.chat_stream.endpoints import frame, sources_of
from turnstream.extensions.chat_stream.events import CHAT_EVENTS
from turnstream.llm.models.catalog import ProviderModels
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, thinking, tool_use
from turnstream.storage.database import Statement
from turnstream.stream.chat_cursor import ChatCursor
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]

# Simulates a failover to a machine with a slow clock: existing rows have times in the future.
AHEAD = Statement(
    """
    WITH made AS (UPDATE turns SET created_at = created_at + interval '1 hour' WHERE chat_id = :chat)
    UPDATE chats SET updated_at = updated_at + interval '1 hour' WHERE id = :chat RETURNING id
    """
)


async def take_until(events: AsyncIterator[Event], name: str, picture: ChatPicture | None = None) -> list[Event]:
    """Returns the events up to the first event with this name."""
    taken = []
    async for event in events:
        if picture is not None:
            picture.take(event)
        taken.append(event)
        if event.name == name:
            return taken
    raise AssertionError(f"the stream ended without {name}: {taken}")


def names_of(events: list[Event]) -> list[str]:
    return [event.name for event in events if event.id is not None]


async def all_turns(api: Client, server: Server, chat: str) -> list[Json]:
    """Returns all turns of the chat, on all branches, in the order of their creation."""
    news = await sources_of(server.services).changes.after(api.owner, UUID(chat.rpartition("/")[2]), 0, 10_000)
    assert news is not None
    return [await api.json("GET", f"{chat}/turns/{turn}") for _, turn in news.news]


async def test_a_chat_read_from_the_beginning_is_sent_completely(api: Client, server: Server) -> None:
    chat = await api.chat(title="Ships")
    model = server.scripts.model(message_of(thinking("Hm"), tool_use("doc_tree", {}, "c")), message_of(text("No.")))
    first = await api.ask(chat, "Any?", model=model)
    second = await api.ask(chat, "Sure?", model="plain")
    picture = ChatPicture()
    async with api.follow(f"{chat}/stream") as events:
        told = await take_until(events, "turn_complete", picture)
        assert names_of(told)[:4] == ["chat", "turn", "turn", "turn_start"]
        assert picture.chat == await api.json("GET", chat)
        await take_until(events, "turn_complete", picture)
    assert [*picture.turns] == [turn["id"] for said in (first, second) for turn in (said.user, said.assistant)]
    picture.assert_shows(await all_turns(api, server, chat))


async def test_one_notice_follows_all_stored_events_of_the_chat(api: Client, server: Server) -> None:
    chat = await api.chat()
    await api.ask(chat, model="plain")
    pause = Pause()
    turn = await api.say(chat, model=server.scripts.model(pausing(pause, "One ", "two.")))
    await pause.reached.wait()
    async with api.follow(f"{chat}/stream?caught_up=true") as events:
        told = await take_until(events, "caught_up")
        assert names_of(told)[-1] == "block_delta"
        assert (told[-1].id, told[-1].data) == (None, {})
        pause.go.set()
        rest = await take_until(events, "turn_complete")
        assert "caught_up" not in [event.name for event in rest]
        assert rest[-1].data["turn"] == turn.assistant["id"]
    async with api.follow(f"{chat}/stream?caught_up=true", rest[-1].id) as events:
        assert [event.name for event in await take_until(events, "caught_up")] == ["caught_up"]


async def test_new_turns_are_sent_to_readers_at_once(api: Client) -> None:
    chat = await api.chat()
    picture = ChatPicture()
    async with api.follow(f"{chat}/stream") as events:
        await take_until(events, "chat", picture)
        await api.say(chat, "Hello you")
        told = await take_until(events, "turn_complete", picture)
        assert told[0].data["title"] == "Hello you"
        assert names_of(told)[1:4] == ["turn", "turn", "turn_start"]
        await api.json("PATCH", chat, json={"title": "Greetings"})
        (changed,) = [event for event in await take_until(events, "chat", picture) if event.id is not None]
        assert changed.data["title"] == "Greetings"
        await api.json("DELETE", chat)
        *_, deleted = await take_until(events, "chat_deleted", picture)  # the event `chat` may be sent twice
        assert deleted.id is None
        assert [event async for event in events] == []
    assert (await api.get(f"{chat}/stream", params={"cursor": changed.id or ""})).status_code == 404


async def test_turns_that_run_side_by_side_are_followed_together(api: Client, server: Server) -> None:
    chat = await api.chat()
    pauses = [Pause(), Pause()]
    picture = ChatPicture()
    async with api.follow(f"{chat}/stream") as events:
        for pause in pauses:
            model = server.scripts.model(pausing(pause, "One ", "two."))
            await api.say(chat, model=model, on_busy="branch")
            await take_until(events, "block_delta", picture)
        for pause in reversed(pauses):
            pause.go.set()
            await take_until(events, "turn_complete", picture)
        assert picture.all_ended
    picture.assert_shows(await all_turns(api, server, chat))


async def test_a_notice_of_a_turn_names_it_and_has_no_cursor(api: Client, server: Server) -> None:
    chat, pause = await api.chat(), Pause()
    async with api.follow(f"{chat}/stream") as events:
        said = await api.say(chat, model=server.scripts.model(pausing(pause, "One ", "two.")))
        await take_until(events, "block_delta")
        view = server.services.live.directory.running(UUID(said.assistant["id"]))
        assert view is not None
        view.notify(Notice("status", {"stage": "executing"}))
        notice = await anext(event async for event in events if event.data.get("stage") == "executing")
        assert (notice.id, notice.name, notice.data["turn"]) == (None, "status", said.assistant["id"])
        pause.go.set()
        await take_until(events, "turn_complete")


async def test_every_id_is_a_valid_cursor(api: Client, server: Server) -> None:
    chat = await api.chat(title="Ships")
    model = server.scripts.model(message_of(text("A", "b")), message_of(text("C")))
    first = await api.ask(chat, model=model)
    again = await api.json("POST", f"{first.url}/regenerate", 201, json={})
    await api.events(again["stream_url"])
    events: list[Event] = []
    async with api.follow(f"{chat}/stream") as stream:
        for _ in range(2):
            events += await take_until(stream, "turn_complete")
    assert len({event.id for event in events}) == len(events)
    for place, event in enumerate(events[:-1], 1):
        rest: list[Event] = []
        async with api.follow(f"{chat}/stream", event.id) as stream:
            while len(rest) < len(events) - place:
                rest.append(await anext(stream))
        assert rest == events[place:]


async def test_after_all_stored_events_only_new_ones_are_sent(api: Client) -> None:
    chat = await api.chat(title="Ships")
    await api.ask(chat)
    async with api.follow(f"{chat}/stream") as events:
        last = (await take_until(events, "turn_complete"))[-1]
    async with api.follow(f"{chat}/stream?cursor={last.id}") as events:
        await api.say(chat, "Again")
        assert names_of(await take_until(events, "turn_start")) == ["turn", "turn", "turn_start"]


async def test_a_chat_renamed_without_readers_is_sent_to_a_returning_reader(api: Client) -> None:
    chat = await api.chat(title="One")
    async with api.follow(f"{chat}/stream") as events:
        first = await anext(events)
    await api.json("PATCH", chat, json={"title": "Two"})
    async with api.follow(f"{chat}/stream", first.id) as events:
        assert (await anext(events)).data["title"] == "Two"
    await api.json("PATCH", chat, json={"title": "One"})
    async with api.follow(f"{chat}/stream", first.id) as events:
        await api.say(chat)
        assert (await anext(events)).name in {"turn", "queue"}


async def test_a_page_of_turns_continues_as_a_stream_without_gaps(api: Client, server: Server) -> None:
    chat = await api.chat()
    await api.ask(chat)
    pause = Pause()
    running = await api.say(chat, model=server.scripts.model(pausing(pause, "One ", "two.")))
    await pause.reached.wait()
    page = await api.json("GET", f"{chat}/turns")
    assert page["turns"][-1]["blocks"][-1]["open"]
    picture = pictured(page["turns"], page["cursor"])
    async with api.follow(f"{chat}/stream", page["cursor"]) as events:
        pause.go.set()
        told = await take_until(events, "turn_complete", picture)
        assert names_of(told) == ["chat", "block_delta", "block_stop", "round_stop", "turn_complete"]
    assert running.assistant["id"] in picture.turns
    picture.assert_shows(await all_turns(api, server, chat))


async def test_a_page_of_another_branch_gets_events_of_running_turns_beside_it(api: Client, server: Server) -> None:
    chat = await api.chat()
    first = await api.ask(chat)
    pause = Pause()
    model = server.scripts.model(pausing(pause, "One ", "two."))
    beside = await api.json("POST", f"{first.url}/regenerate", 201, json={"model": model})
    await pause.reached.wait()
    page = await api.json("GET", f"{chat}/turns", params={"leaf": first.assistant["id"]})
    picture = pictured(page["turns"], page["cursor"])
    async with api.follow(f"{chat}/stream", page["cursor"]) as events:
        told = await take_until(events, "block_delta", picture)
        assert told[0].data["turn"] == beside["assistant_turn"]["id"]
    async with api.follow(f"{chat}/stream", picture.cursor) as events:
        pause.go.set()
        await take_until(events, "turn_complete", picture)
    picture.assert_shows(await all_turns(api, server, chat))


async def test_a_turn_that_ends_while_the_page_is_made_is_not_lost(api: Client, server: Server) -> None:
    """The cursor of the page names the turns that were open before the page's turns were read."""
    chat = await api.chat()
    await api.say(chat)
    while True:
        page = await api.json("GET", f"{chat}/turns")
        picture = pictured(page["turns"], page["cursor"])
        if picture.all_ended:
            break
        async with api.follow(f"{chat}/stream", page["cursor"]) as events:
            await take_until(events, "turn_complete", picture)
        picture.assert_shows(await all_turns(api, server, chat))


async def test_turns_beyond_the_limit_are_sent_when_others_end(
    api: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_tail, "MOST_OPEN", 2)
    chat = await api.chat()
    pause = Pause()
    model = server.scripts.model(pausing(pause, "One ", "two."))
    for number in range(4):
        await api.say(chat, model=model if number == 0 else "plain", on_busy="enqueue")
    picture = ChatPicture()
    async with api.follow(f"{chat}/stream") as events:
        await take_until(events, "block_delta", picture)
        while len(picture.turns) < 4:
            picture.take(await anext(events))
        pause.go.set()
        for _ in range(4):
            await take_until(events, "turn_complete", picture)
    picture.assert_shows(await all_turns(api, server, chat))


async def test_a_long_chat_is_sent_in_portions(api: Client, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_tail, "_BATCH", 3)
    monkeypatch.setattr(chat_tail, "PORTION", 10)
    chat = await api.chat()
    for number in range(4):
        await api.ask(chat, str(number) * 100)
    picture = ChatPicture()
    async with api.follow(f"{chat}/stream") as events:
        for _ in range(4):
            await take_until(events, "turn_complete", picture)
    picture.assert_shows(await all_turns(api, server, chat))


async def test_turns_are_sent_in_the_order_of_their_creation_with_any_clock(api: Client, server: Server) -> None:
    chat = await api.chat(title="Ships")
    await api.ask(chat)
    await server.services.storage.database.row(AHEAD, chat=UUID(chat.rpartition("/")[2]))
    async with api.follow(f"{chat}/stream") as events:
        await take_until(events, "turn_complete")
        for _ in range(2):
            await api.say(chat, on_busy="branch")
            told = [event.data for event in await take_until(events, "turn_start") if event.name == "turn"]
            assert [turn["role"] for turn in told] == ["user", "assistant"]
        await api.json("PATCH", chat, json={"title": "Boats"})
        await api.say(chat, on_busy="branch")
        while "turn" not in (taken := names_of(await take_until(events, "turn_start"))):
            assert taken
    times = [turn["created_at"] for turn in await all_turns(api, server, chat)]
    assert times == sorted(times)
    assert len(set(times)) == 4


BAD = ["x", "0", "1.2", "1..zz", "0..1:1-1-1", "0..0:1-2", "fffffffffffffffff..", "ffffffffffffffff..", "0.abc."]


@pytest.mark.parametrize("cursor", BAD)
async def test_a_cursor_that_is_no_cursor_is_refused_by_name(api: Client, cursor: str) -> None:
    chat = await api.chat()
    by_header = await api.get(f"{chat}/stream", headers={"Last-Event-ID": cursor})
    by_query = await api.get(f"{chat}/stream", params={"cursor": cursor})
    assert (by_header.status_code, by_query.status_code) == (400, 400)
    assert by_header.json()["errors"][0]["field"] == "Last-Event-ID"
    assert by_query.json()["errors"][0]["field"] == "cursor"


async def test_a_cursor_that_names_more_turns_than_a_header_holds_is_none() -> None:
    names = [f"{behind:x}:" for behind in range(301)]
    assert len(parse_cursor(f"fff..{','.join(names[:300])}").open) == 300
    with pytest.raises(ValueError, match="had this id"):
        parse_cursor(f"fff..{','.join(names)}")


async def test_a_cursor_of_another_chat_or_of_turns_that_it_does_not_have_is_refused(api: Client) -> None:
    chat, other = await api.chat(), await api.chat()
    turn = await api.ask(chat)
    async with api.follow(f"{chat}/stream") as events:
        ids = [event.id or "" for event in await take_until(events, "turn_complete")]
    assert (await api.get(f"{other}/stream", params={"cursor": ids[-1]})).status_code == 400
    opened = next(id for id in ids if id.endswith(":1-1-0"))
    place, rest = opened.split(".", 1)
    earlier = f"{int(place, 16) - 2:x}.{rest.partition('.')[0]}."
    for never in (opened.replace("0:1-1-0", "7:1-1-0"), earlier):
        assert (await api.get(f"{chat}/stream", params={"cursor": never})).status_code == 400
    assert turn.assistant["status"] == "complete"


async def test_a_cursor_of_an_attempt_that_a_turn_has_not_had_is_reset(api: Client) -> None:
    chat = await api.chat()
    await api.ask(chat)
    async with api.follow(f"{chat}/stream") as events:
        ids = [event.id or "" for event in await take_until(events, "turn_complete")]
    opened = next(id for id in ids if id.endswith(":1-1-0"))
    async with api.follow(f"{chat}/stream", opened.replace("1-1-0", "9-3-0")) as events:
        named = [event.name for event in await take_until(events, "turn_complete")]
    assert named[0] == "reset"
    assert "block_start" in named


async def test_somebody_elses_chat_is_not_there(api: Client, new_owner: NewOwner) -> None:
    chat = await api.chat()
    assert (await (await new_owner()).get(f"{chat}/stream")).status_code == 404
    assert (await api.get(f"/api/chats/{uuid4()}/stream")).status_code == 404


async def test_headers_and_first_bytes_are_those_of_any_stream(api: Client) -> None:
    chat = await api.chat()
    async with api.stream("GET", f"{chat}/stream") as response:
        assert response.headers["cache-control"] == "no-store, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        assert await anext(response.aiter_bytes()) == b"retry: 1000\n\n"


# --- several replicas ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def two_replicas(database_url: str, document: Document) -> AsyncIterator[tuple[Server, Client, Client]]:
    """Yields the first of two servers, and one client for each server."""
    settings: dict[str, Any] = {"poll_interval": 60, "journal_interval": 0.01, "max_retries": 0}
    async with (
        serving(database_url, **settings) as here,
        serving(database_url, **settings) as there,
        Client(here.url, document) as near,
        Client(there.url, document) as far,
    ):
        for server in (here, there):
            server.scripts.offers.append(ProviderModels(ScriptedProvider(author(Random())), ["any"]))
        yield here, near, far


async def test_a_ring_at_one_replica_is_heard_at_the_other(
    database_url: str, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.chat_stream._POLL", 3600.0)
    async with two_replicas(database_url, document) as (here, near, far):
        chat = await near.chat()
        picture = ChatPicture()
        async with far.follow(f"{chat}/stream") as events:
            await take_until(events, "chat", picture)
            await near.say(chat, "Hello you")
            await take_until(events, "turn_complete", picture)
            await near.json("PATCH", chat, json={"title": "Greetings"})
            assert (await take_until(events, "chat", picture))[-1].data["title"] == "Greetings"
            picture.assert_shows(await all_turns(near, here, chat))
            await near.json("DELETE", chat)
            await take_until(events, "chat_deleted", picture)


async def test_a_ring_that_is_lost_is_found_by_looking(
    database_url: str, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.chat_stream._POLL", 0.02)
    monkeypatch.setattr("turnstream.libraries.broadcast.Broadcast.receive", lambda self, payload: None)
    async with two_replicas(database_url, document) as (_, near, far):
        chat = await near.chat()
        async with far.follow(f"{chat}/stream") as events:
            await take_until(events, "chat")
            await near.say(chat, "Hello you")
            await take_until(events, "turn_complete")
            await near.json("DELETE", chat)
            await take_until(events, "chat_deleted")


async def test_while_the_database_is_away_readers_wait(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstream.extensions.chat_stream._POLL", 0.01)
    # A replica that is alone sends no notifications, so the test pretends that other replicas exist.
    monkeypatch.setattr("turnstream.engine.upkeep.recovery.ReplicaMonitor.is_alone", False)
    async with proxied(database_url) as (url, proxy), serving(url) as server, Client(server.url) as api:
        chat = await api.chat(title="One")
        async with api.follow(f"{chat}/stream") as events:
            await take_until(events, "chat")
            proxy.cut()
            sources_of(server.services).wakeups.notify(UUID(chat.rpartition("/")[2]))
            with capture_logs() as logs:
                wanted = {"broadcast.unsent", "chats.unwatched", "storage.waits"}
                while not wanted <= {entry["event"] for entry in logs}:  # noqa: ASYNC110, the log has no event
                    await asyncio.sleep(0.01)


async def test_a_chat_that_is_deleted_while_its_turns_are_read_ends_its_stream(api: Client, server: Server) -> None:
    chat = await api.chat()
    await api.ask(chat)

    class Late(StreamedTurns):
        async def get(self, owner: str, chat_id: UUID, turn: UUID) -> Turn:
            raise AssertionError("the user turn comes first")

        async def beginning(self, owner: str, chat_id: UUID, turn: UUID, most: int) -> tuple[Turn, frozenset[int]]:
            await server.services.storage.chats.delete(owner, chat_id)
            return await super().beginning(owner, chat_id, turn, most)

    services, identity = server.services, UUID(chat.rpartition("/")[2])
    sources = sources_of(services)._replace(turns=Late(services.storage.database))
    reader = chat_tail.ChatReader(sources, api.owner, identity, ChatCursor(), frame)
    frames = b"".join([data async for data in reader.frames()])
    assert [event.name for event in Parser().feed(frames)] == ["chat", "chat_deleted"]


async def test_a_turn_whose_run_here_stops_without_its_end_is_read_from_the_rows(api: Client, server: Server) -> None:
    chat, pause, services = await api.chat(), Pause(), server.services
    said = await api.say(chat, model=server.scripts.model(pausing(pause, "One ", "two.")))
    await pause.reached.wait()
    identity, answer = UUID(chat.rpartition("/")[2]), UUID(said.assistant["id"])
    directory = Directory()  # the directory of a replica that has not yet noticed that it lost its claim
    sources = sources_of(services)._replace(directory=directory)
    with directory.host(LiveView(await services.storage.turns.get(api.owner, identity, answer)), api.owner):
        reader = chat_tail.ChatReader(sources, api.owner, identity, ChatCursor(), frame)
        frames, parser, events = reader.frames(), Parser(), list[Event]()
        while "turn_start" not in names_of(events):
            events += parser.feed(await anext(frames))
        pause.go.set()
        await api.events(said.stream_url)
    async with aclosing(frames):
        while names_of(events)[-1:] != ["turn_complete"]:
            events += parser.feed(await anext(frames))
    assert "".join(event.data["text"] for event in events if event.name == "block_delta") == "One two."


async def test_a_long_message_is_streamed_in_portions(api: Client, server: Server) -> None:
    chat = await api.chat()
    texts = ['é"\n\\' * 100_000, "short", "x" * 8192, "y" * 139_264]
    await api.json("POST", f"{chat}/turns", 201, json={"blocks": [{"type": "text", "text": each} for each in texts]})
    services = server.services
    sources = sources_of(services)
    reader = chat_tail.ChatReader(sources, api.owner, UUID(chat.rpartition("/")[2]), ChatCursor(), frame)
    parser, events = Parser(), list[Any]()
    async with aclosing(reader.frames()) as frames:
        async for data in frames:
            assert len(data) < 1_000_000
            events += parser.feed(data)
            if any(event.name == "turn_complete" for event in events):
                break
    (turn,) = [event.data for event in events if event.name == "turn" and event.data["role"] == "user"]
    assert [block["text"] for block in turn["blocks"]] == texts


async def test_a_long_message_that_is_deleted_while_it_is_sent_ends_early(api: Client, server: Server) -> None:
    chat = await api.chat()
    await api.ask(chat, "x" * 500_000)
    services, identity = server.services, UUID(chat.rpartition("/")[2])
    sources = sources_of(services)
    reader = chat_tail.ChatReader(sources, api.owner, identity, ChatCursor(), frame)
    events, parser = list[Any](), Parser()
    async with aclosing(reader.frames()) as frames:
        events += parser.feed(await anext(frames))
        await services.storage.chats.delete(api.owner, identity)
        async for data in frames:
            events += parser.feed(data)
    assert [event.name for event in events] == ["chat", "turn", "chat_deleted"]
    assert len(events[1].data["blocks"][0]["text"]) == 8192


# --- random schedules ------------------------------------------------------------------------------------------------


def author(random: Random) -> Callable[[ModelRequest], Reply]:
    """Generates random replies of all kinds, complete and broken."""

    def reply(request: ModelRequest) -> Reply:
        words = [random.choice(["ship ", "\U0001f6a2", "\n\n", 'a "b" '])] * random.randrange(1, 30)
        calls = [tool_use("doc_tree", {}, f"call_{number}") for number in range(random.randrange(3))]
        whole = list(message_of(thinking("Hm", "."), text(*words), *calls))
        ending = random.choice(["whole"] * 6 + ["cut"] * 2 + ["fail"])
        if ending == "cut":
            return [*whole[: random.randrange(1, len(whole))], TransientError("overloaded_error", "Later.")]
        return [*whole[:3], PermanentError("invalid_request_error", "No.")] if ending == "fail" else whole

    return reply


class Visitor:
    """A reader that switches replicas, disconnects at any time, and resumes from any of its earlier cursors."""

    def __init__(self, random: Random, clients: list[Client], chat: str) -> None:
        self.random = random
        self.clients = clients
        self.chat = chat
        self.pictures = [ChatPicture()]

    async def visit(self, over: asyncio.Event) -> None:
        while not (over.is_set() and self.random.random() < 0.5):
            picture = self.random.choice(self.pictures) if self.random.random() < 0.3 else self.pictures[-1]
            await self.read(picture.copy(), self.random.choice([1, 3, 20, 200]), self.random.choice([0.01, 0.05, 0.2]))

    async def read(self, picture: ChatPicture, events: int, patience: float) -> ChatPicture:
        """Resumes from a picture. Stops after `events` events, or when no event arrives for `patience` seconds."""
        client = self.random.choice(self.clients)
        async with client.follow(f"{self.chat}/stream", picture.cursor) as stream:
            for _ in range(events):
                try:
                    picture.take(await asyncio.wait_for(anext(stream), patience))
                except TimeoutError:
                    break
        self.pictures.append(picture)
        return picture

    async def read_all(self, picture: ChatPicture, turns: list[Json]) -> None:
        client = self.random.choice(self.clients)
        picture = picture.copy()
        async with client.follow(f"{self.chat}/stream", picture.cursor) as stream:
            while picture.turns.keys() != {turn["id"] for turn in turns} or not picture.all_ended:
                picture.take(await anext(stream))
        picture.assert_shows(turns)


async def act(random: Random, client: Client, chat: str) -> None:
    """Performs a random action in the chat, as a user does."""
    page = await client.json("GET", f"{chat}/turns")
    answers = [turn for turn in page["turns"] if turn["role"] == "assistant"]
    what = random.choice(["say", "say", "regenerate", "edit", "rename", "cancel", "delete", "queue", "queue"])
    if what == "rename":
        await client.json("PATCH", chat, json={"title": f"Title {random.random()}"})
    elif what == "queue" and (entries := (await client.json("GET", f"{chat}/queue"))["entries"]):
        entry = random.choice(entries)
        changes = [{"blocks": said("Ho")["blocks"]}, {"after": None}, {"kind": "steer"}, {"kind": "queued"}]
        body = {"version": entry["version"], **random.choice(changes)}
        await client.patch(f"{chat}/queue/{entry['id']}", json=body)
    elif what == "cancel" and answers:
        await client.post(f"{turn_url(answers[-1])}/cancel")
    elif what == "delete" and answers:
        await client.delete(turn_url(random.choice(page["turns"])))
    elif what == "regenerate" and answers:
        await client.post(f"{turn_url(random.choice(answers))}/regenerate", json={})
    else:
        behind = {"parent_id": random.choice([None, *(turn["id"] for turn in answers)])} if what == "edit" else {}
        on_busy = random.choice(["branch", "enqueue", "interrupt"])
        await client.post(f"{chat}/turns", json={**said("Hi"), **behind, "on_busy": on_busy, "model": "any"})


@pytest.mark.timeout(180)
async def test_any_schedule_of_disconnects_assembles_the_chats_rows(database_url: str, document: Document) -> None:
    seed = Random().randrange(10**9)
    print(f"seed {seed} repeats what people do, not when it happens")
    random = Random(seed)
    async with two_replicas(database_url, document) as (server, *clients):
        for _ in range(2 if FULL else 1):
            chat = await clients[0].chat(title="Ships")
            visitors = [Visitor(Random(random.random()), clients, chat) for _ in range(3)]
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for visitor in visitors:
                    group.create_task(visitor.visit(over))
                for _ in range(8):
                    await act(random, random.choice(clients), chat)
                    await asyncio.sleep(random.random() * 0.05)
                turns = await ended_turns(server, clients[0], chat)
                over.set()
            for visitor in visitors:
                for picture in [*random.sample(visitor.pictures, min(tries(4), len(visitor.pictures))), ChatPicture()]:
                    await visitor.read_all(picture, turns)


async def ended_turns(server: Server, api: Client, chat: str) -> list[Json]:
    """Waits for the end of every open turn. Returns all turns of the chat."""
    identity = UUID(chat.rpartition("/")[2])
    while (standing := await server.services.storage.chat_changes.state(identity)).open:
        for turn in standing.open:
            await api.events(f"{chat}/turns/{turn}/stream")
    return await all_turns(api, server, chat)


# --- the documentation page ------------------------------------------------------------------------------------------


async def test_the_protocol_names_every_event_of_a_chat_and_each_of_its_members() -> None:
    page = (Path(__file__).parents[3] / "docs/protocol.md").read_text(encoding="utf-8")
    section = page.split("\n## One stream for a chat\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", members)) for name, members in rows}
    assert told.keys() == CHAT_EVENTS.keys() - EVENTS.keys()
    for name, members in told.items():
        assert set(CHAT_EVENTS[name].model_fields) <= members, name
