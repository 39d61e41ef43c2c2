"""A kill of the server during a change of the queue: the stored message and its delivery are consistent."""

import asyncio
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from tests.acceptance.conftest import StartServer
from tests.integration.api.test_openapi import until
from tests.support.http_client import Client, said
from tests.support.locks import Locker, connection_to

Json = dict[str, Any]

# Every change of the queue writes to this table, after its first write and before its last one.
MIDDLE = "LOCK TABLE deleted_turns IN SHARE MODE"
SECONDS = [{"type": "text", "text": "Deuxième"}]


def words_of(turn: Json) -> str:
    return "".join(block["text"] for block in turn["blocks"])


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "change",
    [
        *(pytest.param(each, marks=pytest.mark.full) for each in ("edit", "move", "steer to queued")),
        *("withdraw", "queued to steer"),
    ],
)
async def test_after_a_kill_in_the_middle_of_a_change_the_queue_is_as_it_was_and_is_delivered_so(
    server: StartServer, database_url: str, change: str
) -> None:
    running = await server(TURNSTREAM_DEMO_DELAY="0.05")
    async with (
        Client(running.url) as api,
        connection_to(database_url) as connection,
        connection_to(database_url) as watcher,
    ):
        first = await api.json("POST", "/api/turns", 201, json=said("/long 90000"))
        chat, turn = f"/api/chats/{first['assistant_turn']['chat_id']}", first["assistant_turn"]["id"]
        async with api.follow(first["stream_url"]) as events:
            assert "block_delta" in [event.name async for event in until("block_delta", events)]
        for words in ("Second", "Third"):
            await api.say(chat, words, on_busy="enqueue")
        # This message is long, too: a short turn could receive the steer after the takeover, and end before its
        # cancellation.
        await api.json("POST", f"{chat}/turns", 202, json={**said("/long 80000"), "on_busy": "steer"})
        before = (await api.json("GET", f"{chat}/queue"))["entries"]
        steer, second, third = before
        bodies: dict[str, tuple[Json, Json | None]] = {
            "edit": (second, {"blocks": SECONDS}),
            "move": (third, {"after": None}),
            "withdraw": (second, None),
            "queued to steer": (second, {"kind": "steer"}),
            "steer to queued": (steer, {"kind": "queued", "after": None}),
        }
        entry, body = bodies[change]

        async def ask() -> None:
            url = f"{chat}/queue/{entry['id']}"
            with suppress(httpx2.TransportError):
                if body is None:
                    await api.delete(url, params={"version": entry["version"]})
                else:
                    await api.patch(url, json={"version": entry["version"], **body})

        locker = Locker(connection, watcher)
        async with locker.holding(MIDDLE):
            asking = asyncio.create_task(ask())
            await locker.waiting()
            await running.kill()
            await asking
    await running.start(
        TURNSTREAM_DEMO_DELAY="0.005"
    )  # the new server has the same address, so it takes over the killed server's turns at once
    async with Client(running.url) as api:
        # The takeover ends the round. From then on, the steer may be delivered at any time.
        entries = (await api.json("GET", f"{chat}/queue"))["entries"]
        assert entries in (before, before[1:])
        withdrawn = await api.delete(f"{chat}/queue/{steer['id']}", params={"version": steer["version"]})
        assert withdrawn.status_code == 200 or withdrawn.json()["code"] == "delivered"
        await api.post(f"{chat}/turns/{turn}/cancel")
        await api.events(f"{chat}/turns/{turn}/stream")
        for each in (second, third):
            await api.events(f"{chat}/turns/{each['turn']}/stream")
        path = (await api.json("GET", f"{chat}/turns"))["turns"]
    assert [words_of(turn) for turn in path if turn["role"] == "user"] == ["/long 90000", "Second", "Third"]
    assert [turn["status"] for turn in path if turn["role"] == "assistant"] == ["cancelled", "complete", "complete"]
