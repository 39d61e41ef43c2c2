"""No owner keeps the others waiting: owners share the places, and each owner has its own limits."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import Client, Said
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from turnstream.scripted import Pause, Reply, message_of, text
from turnstream.telemetry import STREAMS_OPEN

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def owners(
    database_url: str, document: Document, **settings: Any
) -> AsyncIterator[tuple[Server, Client, Client]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(database_url, poll_interval=60, **settings))
        ada, bob = [
            await stack.enter_async_context(Client(server.url, document, await server.token(name), name))
            for name in ("ada", "bob")
        ]
        yield server, ada, bob


class Doors:
    """A model in which each call waits for its own pause. The calls come in the order of the turns."""

    def __init__(self, server: Server, count: int) -> None:
        self.pauses = [Pause() for _ in range(count)]
        self.name, self.provider = server.scripts.provider(*map(self._reply, self.pauses))

    @staticmethod
    def _reply(pause: Pause) -> Reply:
        start, *rest = message_of(text("Here."))
        return [start, pause, *rest]

    def words(self) -> Sequence[str]:
        """Returns the last user message of each call so far."""
        return [request.messages[-1].blocks[-1].text for request in self.provider.requests]


async def _ended(client: Client, turn: Said) -> None:
    async with client.follow(f"{turn.url}/stream") as events:
        async for _ in events:
            pass


async def test_a_place_that_becomes_free_goes_to_the_owner_who_has_the_fewest(
    database_url: str, document: Document
) -> None:
    async with owners(database_url, document, concurrent_turns=2) as (server, ada, bob):
        doors = Doors(server, 8)
        turns = [await ada.say(await ada.chat(), f"Ada {number}", model=doors.name) for number in range(6)]
        await doors.pauses[1].reached.wait()
        turns += [await bob.say(await bob.chat(), f"Bob {number}", model=doors.name) for number in range(2)]
        for number, words in enumerate(("Bob 0", "Ada 2", "Bob 1")):
            doors.pauses[number].go.set()
            await doors.pauses[number + 2].reached.wait()
            assert doors.words()[-1] == words
        for pause in doors.pauses:
            pause.go.set()
        for client, turn in zip([ada] * 6 + [bob] * 2, turns, strict=True):
            await _ended(client, turn)


async def test_an_owner_has_no_more_turns_running_than_its_limit(database_url: str, document: Document) -> None:
    async with owners(database_url, document, owner_running_turns=2) as (server, ada, bob):
        doors = Doors(server, 5)
        turns = [await ada.say(await ada.chat(), f"Ada {number}", model=doors.name) for number in range(4)]
        await doors.pauses[1].reached.wait()
        turns.append(await bob.say(await bob.chat(), "Bob", model=doors.name))
        await doors.pauses[2].reached.wait()
        assert sorted(doors.words()) == ["Ada 0", "Ada 1", "Bob"]
        for pause in doors.pauses:
            await pause.reached.wait()
            pause.go.set()
        for client, turn in zip([ada] * 4 + [bob], turns, strict=True):
            await _ended(client, turn)


async def test_a_message_beyond_the_queue_of_its_owner_is_refused_and_nothing_is_stored(
    database_url: str, document: Document, tmp_path: Path
) -> None:
    plans = tmp_path / "plans.toml"
    plans.write_text('default = "small"\n[plans.small]\nrunning_turns = 1\nqueued_turns = 2\n')
    async with owners(database_url, document, plans_file=plans) as (server, ada, bob):
        doors = Doors(server, 4)
        chat = await ada.chat()
        first = await ada.say(chat, "Ada 0", model=doors.name)
        await doors.pauses[0].reached.wait()
        turns = [await ada.say(await ada.chat(), f"Ada {number}", model=doors.name) for number in (1, 2)]
        message = {"blocks": [{"type": "text", "text": "One more."}], "model": doors.name}
        other = await ada.chat()
        for path in ("/api/turns", f"{other}/turns", f"{first.user_url}/fork"):
            refused = await ada.post(path, json={"into": "chat"} if path.endswith("fork") else message)
            assert refused.status_code == 429, path
            assert refused.headers["retry-after"] == "5"
            assert "turns in the queue, 2 of an owner" in refused.json()["detail"]
        assert len((await ada.json("GET", "/api/chats"))["chats"]) == 4
        turns.append(await bob.say(await bob.chat(), "Bob", model=doors.name))
        for pause in doors.pauses:
            await pause.reached.wait()
            pause.go.set()
        for client, turn in zip([ada] * 3 + [bob], [first, *turns], strict=True):
            await _ended(client, turn)


async def test_a_stream_beyond_the_limit_of_its_owner_is_refused_until_another_one_ends(
    database_url: str, document: Document
) -> None:
    async with owners(database_url, document, owner_streams=2) as (server, ada, bob):
        pause = Pause()
        model = server.scripts.model(Doors._reply(pause))
        turn = await ada.say(await ada.chat(), model=model)
        await pause.reached.wait()
        async with ada.follow(f"{turn.url}/stream") as events:
            await anext(events)
            async with ada.follow("/api/stream"):
                for path in (f"{turn.url}/stream", "/api/stream", f"{turn.url.rpartition('/turns')[0]}/stream"):
                    refused = await ada.get(path, headers={"Accept": "text/event-stream"})
                    assert refused.status_code == 429, path
                    assert "open streams, 2 of an owner" in refused.json()["detail"]
                async with bob.follow("/api/stream"):
                    pass
            while STREAMS_OPEN._value.get() > 1:  # noqa: ASYNC110, the end of a connection has no event here
                await asyncio.sleep(0.01)
            async with ada.follow("/api/stream"):
                pass
            pause.go.set()
