"""AG-UI against real servers: a run whose connection is cut many times, and a run whose server is killed."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.acceptance.conftest import StartServer

pytestmark = pytest.mark.extensions("ag_ui")

Json = dict[str, Any]
MESSAGE: Json = {"id": "m1", "role": "user", "content": "Tell me about ships."}
_OPTIONS = {"TURNSTREAM_DEMO_DELAY": "0.01", "TURNSTREAM_JOURNAL_INTERVAL": "0.02"}


async def events_of(url: str, thread: str) -> AsyncIterator[Json]:
    """Yields the events of the run that answers the message. If the message is sent again, the same answer is
    followed.
    """
    body = {"threadId": thread, "runId": "r", "protocolVersion": "1.0", "messages": [MESSAGE]}
    async with (
        httpx2.AsyncClient(base_url=url, timeout=150) as client,
        client.stream("POST", "/api/ag-ui", json=body) as response,
    ):
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))


async def some_of(url: str, thread: str, count: int) -> None:
    async with aclosing(events_of(url, thread)) as events:  # type: ignore[type-var]
        async for _ in events:
            count -= 1
            if count <= 0:
                break


async def messages_of(url: str, thread: str) -> list[Json]:
    async with httpx2.AsyncClient(base_url=url) as client:
        found: list[Json] = (await client.get(f"/api/ag-ui/threads/{thread}")).json()["messages"]
    return found


async def check_whole(url: str, thread: str) -> None:
    """Checks that the last reader has the stored text. A snapshot replaces the text before it."""
    shown: dict[str, str] = {}
    last: Json = {}
    async for event in events_of(url, thread):
        last = event
        match event["type"]:
            case "MESSAGES_SNAPSHOT":
                shown = {each["id"]: each.get("content") or "" for each in event["messages"] if each["role"] != "user"}
            case "TEXT_MESSAGE_CONTENT":
                shown[event["messageId"]] = shown.get(event["messageId"], "") + event["delta"]
            case _:
                pass
    assert last["type"] == "RUN_FINISHED"
    stored = await messages_of(url, thread)
    assert [each["role"] for each in stored].count("user") == 1, "the message is stored once"
    texts = {each["id"]: each["content"] for each in stored if each["role"] == "assistant" and each.get("content")}
    assert texts
    assert {id: text for id, text in shown.items() if id in texts} == texts


@pytest.mark.timeout(180)
async def test_a_run_is_whole_after_many_cuts(server: StartServer) -> None:
    replicas = [await server(**_OPTIONS) for _ in range(2)]
    thread = str(uuid4())
    for number in range(12):
        await some_of(replicas[number % 2].url, thread, 1 + number)
    await check_whole(replicas[1].url, thread)


@pytest.mark.timeout(180)
async def test_a_run_resumes_on_another_replica_after_the_one_that_wrote_it_was_killed(server: StartServer) -> None:
    first, second = [await server(**{**_OPTIONS, "TURNSTREAM_DEMO_DELAY": delay}) for delay in ("0.05", "0.001")]
    thread = str(uuid4())
    await some_of(first.url, thread, 8)
    await first.kill()
    await check_whole(second.url, thread)
