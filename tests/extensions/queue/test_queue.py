"""The queue of a chat: clients list, edit, move and withdraw waiting messages, and convert them to steers and back."""

import asyncio
import dataclasses
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from tests.extensions.chat_stream.test_chat_stream import Visitor, all_turns, ended_turns, take_until, two_replicas
from tests.integration.api.chat_picture import ChatPicture, pictured
from tests.integration.api.test_openapi import registered
from tests.support.http_client import Client, Event, Parser, Said, said
from tests.support.http_server import Server, pausing, serving
from tests.support.locks import Locker
from tests.support.openapi_document import Document
from tests.support.pictures import PIXEL
from turnstream.domain.turns import Turn
from turnstream.extensions.chat_stream.beginnings import StreamedTurns
from turnstream.extensions.chat_stream.endpoints import frame, sources_of
from turnstream.extensions.chat_stream.reader import ChatReader
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, ScriptedProvider, message_of, text
from turnstream.stream.chat_cursor import ChatCursor
from turnstream_client.errors import RequestRejected
from turnstream_client.http import AsyncClient

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]


def words_to(request: ModelRequest) -> list[str]:
    return [block.text for message in request.messages for block in message.blocks if message.role == "user"]


@dataclass(frozen=True)
class Line:
    """A chat whose first turn runs until `pause.go` is set, and the queue behind this turn."""

    api: Client
    server: Server
    chat: str
    model: str
    provider: ScriptedProvider
    pause: Pause
    first: Said

    async def enqueue(self, *words: str) -> list[Json]:
        for each in words:
            await self.api.say(self.chat, each, model=self.model, on_busy="enqueue")
        return await self.entries()

    async def steer(self, words: str, **headers: str) -> Json:
        await self.api.json(
            "POST", f"{self.chat}/turns", 202, json={**said(words), "on_busy": "steer"}, headers=headers
        )
        return next(entry for entry in await self.entries() if entry["blocks"][0]["text"] == words)

    async def entries(self) -> list[Json]:
        found: list[Json] = (await self.api.json("GET", f"{self.chat}/queue"))["entries"]
        return found

    async def words(self) -> list[str]:
        return [f"{entry['kind']} {entry['blocks'][0]['text']}" for entry in await self.entries()]

    async def change(self, entry: Json, expect: int = 200, **changes: Any) -> Json:
        body = {"version": entry["version"], **changes}
        changed: Json = await self.api.json("PATCH", f"{self.chat}/queue/{entry['id']}", expect, json=body)
        return changed

    async def withdraw(self, entry: Json, expect: int = 200) -> Json:
        query = f"?version={entry['version']}"
        gone: Json = await self.api.json("DELETE", f"{self.chat}/queue/{entry['id']}{query}", expect)
        return gone

    async def end(self) -> list[str]:
        """Runs all turns to their end. Returns the user's words in the request of the last model call."""
        self.pause.go.set()
        while True:
            turns = await all_turns(self.api, self.server, self.chat)
            if all(turn["status"] not in {"queued", "running"} for turn in turns):
                return words_to(self.provider.requests[-1])
            open_one = next(turn for turn in turns if turn["status"] in {"queued", "running"})
            await self.api.events(f"{self.chat}/turns/{open_one['id']}/stream")


def blocks(*words: str) -> list[Json]:
    return [{"type": "text", "text": each} for each in words]


@pytest.fixture
def new_line(api: Client, server: Server) -> Any:
    async def new() -> Line:
        pause, chat = Pause(), await api.chat()
        replies = [pausing(pause, "One ", "two."), *[list(message_of(text("Yes.")))] * 20]
        model, provider = server.scripts.provider(*replies)
        first = await api.say(chat, "First", model=model)
        await pause.reached.wait()
        return Line(api, server, chat, model, provider, pause, first)

    return new


async def test_messages_that_wait_are_listed_with_ids_and_versions(new_line: Any) -> None:
    line = await new_line()
    second, third = await line.enqueue("Second", "Third")
    steer = await line.steer("Briefly")
    assert await line.words() == ["steer Briefly", "queued Second", "queued Third"]
    assert steer["turn"] == line.first.assistant["id"]
    assert (second["kind"], second["blocks"][0]["text"]) == ("queued", "Second")
    assert len({entry["version"] for entry in (steer, second, third)}) == 3
    assert await line.end() == ["First", "Briefly", "Second", "Third"]
    assert await line.entries() == []


async def test_an_edited_message_reaches_the_model_as_it_is_then(new_line: Any) -> None:
    line = await new_line()
    second, _ = await line.enqueue("Second", "Third")
    changed = await line.change(second, blocks=blocks("Zweitens"))
    assert (changed["id"], changed["turn"]) == (second["id"], second["turn"])
    assert changed["version"] != second["version"]
    assert await line.change(second, blocks=blocks("Zweitens")) == changed, "a repetition changes nothing"
    refused = await line.change(second, 409, blocks=blocks("Deuxième"))
    assert refused["code"] == "version_outdated"
    assert await line.end() == ["First", "Zweitens", "Third"]


async def test_a_message_is_moved_within_the_line(new_line: Any) -> None:
    line = await new_line()
    second, third, fourth = await line.enqueue("Second", "Third", "Fourth")
    await line.change(fourth, after=None)
    assert await line.words() == ["queued Fourth", "queued Second", "queued Third"]
    await line.change(fourth, after=None)
    await line.change(second, after=third["id"])
    assert await line.words() == ["queued Fourth", "queued Third", "queued Second"]
    refused = await line.change(second, 422, after=str(uuid4()))
    assert refused["errors"][0]["field"] == "after"
    assert await line.end() == ["First", "Fourth", "Third", "Second"]


async def test_a_withdrawn_message_never_reaches_the_model(new_line: Any) -> None:
    line = await new_line()
    second, _ = await line.enqueue("Second", "Third")
    steer = await line.steer("Briefly")
    for entry in (second, steer):
        for _ in range(2):
            assert await line.withdraw(entry) == {"withdrawn": entry["id"]}
        refused = await line.change(entry, 409, blocks=blocks("Again"))
        assert refused["code"] == "withdrawn"
    assert await line.words() == ["queued Third"]
    assert await line.end() == ["First", "Third"]
    sent = {word for request in line.provider.requests for word in words_to(request)}
    assert sent == {"First", "Third"}


async def test_a_repeated_post_does_not_bring_a_withdrawn_message_back(new_line: Any) -> None:
    line = await new_line()
    key, other = {"Idempotency-Key": str(uuid4())}, {"Idempotency-Key": str(uuid4())}
    sent = {"blocks": blocks("Second"), "on_busy": "enqueue"}
    steered = {"blocks": blocks("Briefly"), "on_busy": "steer"}
    turns = f"{line.chat}/turns"
    await line.api.json("POST", turns, 201, json=sent, headers=key)
    await line.api.json("POST", turns, 202, json=steered, headers=other)
    for entry in (await line.api.json("GET", f"{line.chat}/queue"))["entries"]:
        await line.withdraw(entry)
    for body, its in ((sent, key), (steered, other)):
        for _ in range(2):
            refused = await line.api.json("POST", turns, 409, json=body, headers=its)
            assert (refused["code"], "was withdrawn" in refused["detail"]) == ("withdrawn", True)
    another = await line.api.json("POST", turns, 422, json={**sent, "blocks": blocks("Other")}, headers=key)
    assert another["code"] == "idempotency_key_reused"
    assert await line.words() == []
    assert await line.end() == ["First"]


async def test_a_queued_message_becomes_a_steer(new_line: Any) -> None:
    line = await new_line()
    second, third = await line.enqueue("Second", "Third")
    changed = await line.change(third, kind="steer")
    assert (changed["id"], changed["kind"], changed["turn"]) == (third["id"], "steer", line.first.assistant["id"])
    assert await line.change(third, kind="steer") == changed
    assert await line.words() == ["steer Third", "queued Second"]
    edited = await line.change(changed, blocks=blocks("Thirdly"))
    assert await line.end() == ["First", "Thirdly", "Second"]
    refused = await line.change(edited, 409, blocks=blocks("Fourthly"))
    assert refused["delivered"] == {"turn": line.first.assistant["id"], "round": 1}
    refused = await line.withdraw(second, 409)
    assert (refused["code"], refused["delivered"]) == ("delivered", {"turn": second["turn"], "round": None})


async def test_a_steer_becomes_a_queued_message_and_a_repeated_post_finds_it(new_line: Any) -> None:
    line = await new_line()
    second, _ = await line.enqueue("Second", "Third")
    key = {"Idempotency-Key": str(uuid4())}
    steer = await line.steer("Briefly", **key)
    changed = await line.change(steer, kind="queued")
    assert (changed["id"], changed["kind"]) == (steer["id"], "queued")
    again = await line.api.json(
        "POST", f"{line.chat}/turns", 201, json={**said("Briefly"), "on_busy": "steer"}, headers=key
    )
    assert (again["user_turn"]["id"], again["steered"]) == (steer["id"], False)
    assert await line.words() == ["queued Briefly", "queued Second", "queued Third"]
    back = await line.change(changed, kind="steer")
    await line.change(back, kind="queued", after=second["id"])
    assert await line.words() == ["queued Second", "queued Briefly", "queued Third"]
    assert await line.end() == ["First", "Second", "Briefly", "Third"]


async def test_readers_of_the_chat_see_every_change(new_line: Any) -> None:
    line = await new_line()
    second, third, fourth = await line.enqueue("Second", "Third", "Fourth")
    page = await line.api.json("GET", f"{line.chat}/turns")
    picture = pictured(page["turns"], page["cursor"])
    late = picture.copy()
    async with line.api.follow(f"{line.chat}/stream", page["cursor"]) as events:
        await line.change(third, blocks=blocks("Thirdly"))
        (*_, deleted) = await take_until(events, "turns_deleted", picture)
        assert {*deleted.data["turns"]} == {each for entry in (third, fourth) for each in (entry["id"], entry["turn"])}
        await line.change(fourth, after=None)
        await take_until(events, "turns_deleted", picture)
        await line.withdraw(second)
        await take_until(events, "turns_deleted", picture)
        steer = await line.steer("Briefly")
        (*_, notice) = await take_until(events, "queue", picture)
        assert (notice.id, notice.data) == (None, {})
        await line.withdraw(steer)
        await take_until(events, "queue", picture)
        line.pause.go.set()
        await read_to_the_end(events, picture)
    turns = await all_turns(line.api, line.server, line.chat)
    picture.assert_shows(turns)
    async with line.api.follow(f"{line.chat}/stream", page["cursor"]) as events:
        await read_to_the_end(events, late)
    late.assert_shows(turns)
    assert words_to(line.provider.requests[-1]) == ["First", "Fourth", "Thirdly"]


async def test_a_message_that_moves_while_a_reader_loads_it_is_sent_behind_the_turn_that_it_then_follows(
    new_line: Any, server: Server
) -> None:
    line = await new_line()
    second, third = await line.enqueue("Second", "Third")

    class Late(StreamedTurns):
        async def beginning(self, owner: str, chat_id: UUID, turn: UUID, most: int) -> tuple[Turn, frozenset[int]]:
            if str(turn) == second["id"] and await line.words() == ["queued Second", "queued Third"]:
                await line.change(second, after=third["id"])
            return await super().beginning(owner, chat_id, turn, most)

    services, picture = server.services, ChatPicture()
    sources = sources_of(services)._replace(turns=Late(services.storage.database))
    reader = ChatReader(sources, line.api.owner, UUID(line.chat.rpartition("/")[2]), ChatCursor(), frame)
    parser = Parser()
    async with aclosing(reader.frames()) as frames:
        while not (picture.all_ended and len(picture.turns) == 6):
            for event in parser.feed(await anext(frames)):
                picture.take(event)
            if third["turn"] in picture.turns:
                line.pause.go.set()
    picture.assert_shows(await all_turns(line.api, line.server, line.chat))
    assert words_to(line.provider.requests[-1]) == ["First", "Third", "Second"]


async def read_to_the_end(events: Any, picture: ChatPicture) -> list[Event]:
    taken = []
    while not (picture.all_ended and len(picture.turns) == 6):
        taken += await take_until(events, "turn_complete", picture)
    return taken


async def test_nothing_is_changed_while_a_replica_of_the_version_before_runs(new_line: Any, server: Server) -> None:
    line = await new_line()
    (second,) = await line.enqueue("Second")
    async with registered(server):
        for change in CHANGES:
            refused = await request(line, second, change)
            assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
            assert "older version" in refused.json()["detail"]
    await line.change(second, blocks=blocks("Zweitens"))
    assert await line.end() == ["First", "Zweitens"]


async def test_the_workers_look_again_also_after_a_refusal_since_rows_were_locked_for_it(
    new_line: Any, server: Server
) -> None:
    line = await new_line()
    (second,) = await line.enqueue("Second")
    services, woken = server.services, list[str]()
    live = dataclasses.replace(services.live, wake=lambda: woken.append("woken"))
    server.app.state.services = dataclasses.replace(services, live=live)
    try:
        for change in ("edit", "withdraw"):
            refused = await request(line, {**second, "version": "another"}, change)
            assert refused.json()["code"] == "version_outdated"
    finally:
        server.app.state.services = services
    assert woken == ["woken", "woken"]
    assert await line.end() == ["First", "Second"]


async def test_an_invalid_conversion_or_move_is_refused(new_line: Any) -> None:
    line = await new_line()
    second, third = await line.enqueue("Second", "Third")
    steer = await line.steer("Briefly")
    refused = await line.change(steer, 422, after=None)
    assert refused["errors"][0]["field"] == "after"
    refused = await line.change(steer, 422, kind="queued", after=third["turn"])
    assert refused["errors"][0]["field"] == "after"
    picture = {"type": "image", "source": {"type": "base64", "data": b64encode(PIXEL).decode()}}
    drawn = await line.change(second, blocks=[picture])
    refused = await line.change(drawn, 422, kind="steer")
    assert refused["errors"][0]["field"] == "kind"
    await line.api.json("POST", f"{line.first.url}/cancel", 202)
    await line.api.events(line.first.stream_url)


async def test_a_message_that_waits_alone_is_edited_and_withdrawn_and_steers_nothing(
    database_url: str, document: Document
) -> None:
    async with serving(database_url, concurrent_turns=1) as server, Client(server.url, document) as api:
        busy = Pause()
        model = server.scripts.model(pausing(busy, "One ", "two."))
        await api.say(await api.chat(), model=model)
        await busy.reached.wait()
        chat, key = await api.chat(), {"Idempotency-Key": str(uuid4())}
        posted = await api.json("POST", f"{chat}/turns", 201, json=said("Alone"), headers=key)
        alone = Said(posted["user_turn"], posted["assistant_turn"], posted["stream_url"])
        (entry,) = (await api.json("GET", f"{chat}/queue"))["entries"]
        assert entry["id"] == alone.user["id"]
        url = f"{chat}/queue/{entry['id']}"
        await api.json("PATCH", url, 409, json={"version": entry["version"], "kind": "steer"})
        steered = await api.json("POST", f"{chat}/turns", 202, json={**said("And"), "on_busy": "steer"})
        assert steered["assistant_turn"]["id"] == alone.assistant["id"]
        refused = await api.json("DELETE", url, 409)
        assert "withdraw or change them first" in refused["detail"]
        await api.say(chat, "Later", on_busy="enqueue")
        steer, *_ = (await api.json("GET", f"{chat}/queue"))["entries"]
        await api.json("PATCH", f"{chat}/queue/{steer['id']}", json={"version": steer["version"], "kind": "queued"})
        entries = (await api.json("GET", f"{chat}/queue"))["entries"]
        assert [each["blocks"][0]["text"] for each in entries] == ["Alone", "And", "Later"]
        for each in entries:
            await api.json("DELETE", f"{chat}/queue/{each['id']}")
        refused = await api.json("POST", f"{chat}/turns", 409, json=said("Alone"), headers=key)
        assert refused["code"] == "withdrawn"
        assert (await api.json("GET", f"{chat}/turns"))["turns"] == []
        busy.go.set()


async def test_a_message_whose_turn_is_being_cancelled_is_not_in_the_queue(new_line: Any) -> None:
    line = await new_line()
    second, third = await line.enqueue("Second", "Third")
    await line.api.json("POST", f"{line.chat}/turns/{second['turn']}/cancel", 202)
    assert await line.words() == ["queued Third"]
    refused = await line.change(second, 409, blocks=blocks("Zweitens"))
    assert "is being cancelled" in refused["detail"]
    await line.change(third, after=None)
    assert await line.end() == ["First", "Third"]


async def test_the_client_in_python_lists_changes_and_withdraws(database_url: str) -> None:
    async with serving(database_url) as server, Client(server.url) as api, AsyncClient(server.url, None) as client:
        pause = Pause()
        model, provider = server.scripts.provider(pausing(pause, "One ", "two."), list(message_of(text("Yes."))))
        first = await api.say(await api.chat(), "First", model=model)
        chat = first.assistant["chat_id"]
        await pause.reached.wait()
        for words in ("Second", "Third"):
            await api.say(f"/api/chats/{chat}", words, model=model, on_busy="enqueue")
        second, third = await client.queue(chat)
        assert await client.withdraw(chat, second["id"], second["version"]) == {"withdrawn": second["id"]}
        changed = await client.change_queued(chat, third["id"], third["version"], blocks=blocks("Thirdly"))
        assert await client.queue(chat) == [changed]
        with pytest.raises(RequestRejected) as refused:
            await client.change_queued(chat, third["id"], third["version"], kind="steer")
        assert refused.value.status == 409
        pause.go.set()
        await api.events(f"/api/chats/{chat}/turns/{third['turn']}/stream")
        assert words_to(provider.requests[-1]) == ["First", "Thirdly"]


# --- races with the delivery -----------------------------------------------------------------------------------------

CHANGES: dict[str, Json] = {
    "edit": {"blocks": blocks("Changed")},
    "move": {"after": None},
    "convert": {"kind": "steer"},
    "withdraw": {},
}


async def request(line: Line, entry: Json, change: str) -> httpx2.Response:
    path, version = f"{line.chat}/queue/{entry['id']}", {"version": entry["version"]}
    if change == "withdraw":
        return await line.api.delete(path, params=version)
    changes = {"kind": "queued"} if change == "convert" and entry["kind"] == "steer" else CHANGES[change]
    return await line.api.patch(path, json={**version, **changes})


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_that_meets_a_claim_waits_for_it_and_names_the_turn(
    new_line: Any, database: Locker, change: str
) -> None:
    line = await new_line()
    _, third = await line.enqueue("Second", "Third")
    async with database.holding(
        "UPDATE turns SET status = 'running', attempt = attempt + 1, replica = gen_random_uuid() WHERE id = $1",
        UUID(third["turn"]),
        commit=True,
    ):
        asked = asyncio.create_task(request(line, third, change))
        await database.waiting()
    refused = await asked
    assert refused.status_code == 409
    assert refused.json()["delivered"] == {"turn": third["turn"], "round": None}


DELIVERED = {
    "edit": ["First", "Second", "Changed"],
    "move": ["First", "Third", "Second"],
    "convert": ["First", "Third", "Second"],
    "withdraw": ["First", "Second"],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_message_is_not_claimed_while_a_change_of_it_is_under_way(
    new_line: Any, database: Locker, change: str
) -> None:
    line = await new_line()
    _, third = await line.enqueue("Second", "Third")
    async with database.holding("LOCK TABLE deleted_turns IN SHARE MODE"):
        asked = asyncio.create_task(request(line, third, change))
        await database.waiting()
        if change != "convert":  # a converted message is a steer, which the running turn must receive before its end
            line.pause.go.set()
            await line.api.events(line.first.stream_url)
    assert (await asked).status_code == 200
    assert await line.end() == DELIVERED[change]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_message_that_was_delivered_stays_as_it_is(new_line: Any, change: str) -> None:
    line = await new_line()
    second, third = await line.enqueue("Second", "Third")
    words = await line.end()
    for entry in (second, third):
        refused = await request(line, entry, change)
        assert (refused.status_code, refused.json()["delivered"]["turn"]) == (409, entry["turn"])
    assert words == ["First", "Second", "Third"]


STEERED = {
    "edit": ["First", "Changed"],
    "convert": ["First", "Briefly"],
    "withdraw": ["First"],
}


@pytest.mark.parametrize("change", STEERED)
async def test_a_change_of_a_steer_that_meets_its_round_waits_and_names_the_round(
    new_line: Any, database: Locker, change: str
) -> None:
    line = await new_line()
    steer = await line.steer("Briefly")
    async with database.holding("LOCK TABLE steers IN SHARE MODE"):
        line.pause.go.set()
        await database.waiting()
        asked = asyncio.create_task(request(line, steer, change))
        await database.waiting(2)
    refused = await asked
    assert (refused.status_code, refused.json().get("code")) == (409, "delivered")
    assert refused.json()["delivered"] == {"turn": line.first.assistant["id"], "round": 1}
    assert await line.end() == ["First", "Briefly"]


@pytest.mark.parametrize("change", STEERED)
async def test_a_round_with_a_simultaneous_change_of_a_steer_receives_the_changed_text(
    new_line: Any, database: Locker, change: str
) -> None:
    line = await new_line()
    steer = await line.steer("Briefly")
    async with database.holding("LOCK TABLE steers IN SHARE MODE"):
        asked = asyncio.create_task(request(line, steer, change))
        await database.waiting()
        line.pause.go.set()
        await database.waiting(2)
    assert (await asked).status_code == 200
    assert await line.end() == STEERED[change]
    turn = await line.api.json("GET", line.first.url)
    assert [block["text"] for block in turn["blocks"] if block["type"] == "user_text"] == (
        ["Changed"] if change == "edit" else []
    )


# --- random schedules ------------------------------------------------------------------------------------------------


class Editor:
    """Changes waiting messages through any replica. `texts` has, for each message, the texts that were accepted, by
    version. `replaced` has the versions that accepted changes have replaced.
    """

    def __init__(self, random: Random, clients: Sequence[Client], chat: str) -> None:
        self.random, self.clients, self.chat = random, clients, chat
        self.texts: dict[str, dict[str, str]] = defaultdict(dict)
        self.replaced: set[tuple[str, str]] = set()
        self.withdrawn: set[str] = set()
        self.done: Counter[str] = Counter()

    async def post(self, words: str) -> None:
        on_busy = self.random.choice(["enqueue", "enqueue", "steer"])
        answer = await self.random.choice(self.clients).post(
            f"{self.chat}/turns", json={**said(words), "on_busy": on_busy, "model": "any"}
        )
        assert answer.status_code in {201, 202}, answer.text

    async def act(self) -> None:
        client = self.random.choice(self.clients)
        entries = (await client.json("GET", f"{self.chat}/queue"))["entries"]
        if not entries:
            return
        entry, texts = self.random.choice(entries), f"{uuid4()}"
        id, version = entry["id"], entry["version"]
        self.texts[id].setdefault(version, entry["blocks"][0]["text"])
        what = self.random.choice(["edit", "move", "convert", "withdraw", "edit and move"])
        changes: Json = {"version": version}
        if "edit" in what:
            changes["blocks"] = blocks(texts)
        if "move" in what:
            others = [each["id"] for each in entries if each["kind"] == "queued" and each["id"] != id]
            changes["after"] = self.random.choice([None, *others])
        if what == "convert":
            changes["kind"] = "steer" if entry["kind"] == "queued" else "queued"
        url = f"{self.chat}/queue/{id}"
        if what == "withdraw":
            answer = await client.delete(url, params={"version": version})
            assert answer.status_code in {200, 409}, answer.text
            if answer.status_code == 200:
                self.withdrawn.add(id)
        else:
            answer = await client.patch(url, json=changes)
            assert answer.status_code in {200, 409, 422}, answer.text
            if answer.status_code == 200 and (new := answer.json()["version"]) != version:
                self.replaced.add((id, version))
                self.replaced.discard((id, new))  # the second of two conversions restores the first version
                self.texts[id][new] = answer.json()["blocks"][0]["text"]
        self.done[f"{what}: {answer.status_code}"] += 1


@pytest.mark.timeout(240)  # takes a minute alone, and longer when other tests run too
async def test_any_schedule_of_changes_and_deliveries_loses_no_message_and_sends_none_twice(
    database_url: str, document: Document
) -> None:
    seed = Random().randrange(10**9)
    print(f"seed {seed} repeats what people do, not when it happens")
    random = Random(seed)
    async with two_replicas(database_url, document) as (server, *clients):
        chat = await clients[0].chat(title="Ships")
        editor = Editor(random, clients, chat)
        visitors = [Visitor(Random(random.random()), clients, chat) for _ in range(2)]
        over, words = asyncio.Event(), [f"message {number}" for number in range(12)]
        async with asyncio.TaskGroup() as group:
            for visitor in visitors:
                group.create_task(visitor.visit(over))
            for each in words:
                await editor.post(each)
                await asyncio.gather(*(editor.act() for _ in range(random.randrange(4))))
            turns = await ended_turns(server, clients[0], chat)
            over.set()
        for visitor in visitors:
            await visitor.read_all(visitor.pictures[-1], turns)
    sent = Counter(
        block["text"]
        for turn in turns
        for block in turn["blocks"]
        if turn["role"] == "user" or block["type"] == "user_text"
    )
    assert set(sent.values()) <= {1}
    assert len(sent) == len(words) - len(editor.withdrawn)
    for id, texts in editor.texts.items():
        last = {text for version, text in texts.items() if (id, version) not in editor.replaced}
        gone = set(texts.values()) - last
        assert not sent.keys() & (gone if id not in editor.withdrawn else set(texts.values())), editor.done
