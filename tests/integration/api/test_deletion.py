"""What becomes of readers, runs and rows when a chat or a branch is deleted."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.llm.scripted import Pause, message_of, tool_use
from tests.integration.api.test_chat_stream import two_replicas
from tests.support.http_client import Client, Event, Said
from tests.support.http_server import pausing, serving
from tests.support.openapi_document import Document

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]

LOOK = {"type": "client", "name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
# What a server logs when something is wrong with it.
TROUBLES = {"turn.failed", "turn.not_tidied", "turn.abandoned", "claim.lost"}


async def until_first_delta(client: Client, turn: Said, seen: asyncio.Event) -> list[Event]:
    """All events of the turn; `seen` is set once there is text of it."""
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
