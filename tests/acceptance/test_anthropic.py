"""A client of Anthropic's API whose connections are cut, and whose server is killed."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from anthropic import AsyncAnthropic

from tests.acceptance.conftest import StartServer

BODY = {
    "model": "demo",
    "max_tokens": 1000,
    "stream": True,
    "messages": [{"role": "user", "content": "Tell me about ships."}],
}
HEADERS = {"anthropic-version": "2023-06-01"}


class Reading:
    """One message as a client receives it over several connections."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}

    @property
    def text(self) -> str:
        deltas = [event["delta"] for event in self.events if event["type"] == "content_block_delta"]
        return "".join(delta.get("text", "") for delta in deltas)

    async def read(self, url: str) -> AsyncIterator[dict[str, Any]]:
        """Yields further events until the stream ends or the caller stops."""
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=150) as client,
            client.stream("POST", f"{url}/v1/messages", json=BODY, headers={**HEADERS, **self.headers}) as answer,
        ):
            self.headers["Turnstream-Resume"] = answer.headers["Turnstream-Resume"]
            id = ""
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    id = value
                elif name == "data":
                    event = json.loads(value)
                    if event["type"] == "message_start":
                        self.events = []
                    self.events.append(event)
                    self.headers["Last-Event-ID"] = id
                    yield event


async def whole_of(url: str, reading: Reading) -> Any:
    """Returns the complete message through the SDK."""
    body: Any = {name: value for name, value in BODY.items() if name != "stream"}
    name = {"Turnstream-Resume": reading.headers["Turnstream-Resume"]}
    async with AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        return await client.messages.create(**body, extra_headers=name)


def check(reading: Reading, message: Any) -> None:
    assert reading.events[-1]["type"] == "message_stop"
    types = [event["type"] for event in reading.events]
    assert types.count("content_block_start") == types.count("content_block_stop")
    assert reading.text == "".join(block.text for block in message.content if block.type == "text")


async def test_a_message_is_whole_after_many_cuts(server: StartServer) -> None:
    replicas = [await server(TURNSTREAM_DEMO_DELAY="0.01", TURNSTREAM_JOURNAL_INTERVAL="0.02") for _ in range(2)]
    reading = Reading()
    for number in range(12):
        left = 1 + number
        events = reading.read(replicas[number % 2].url)
        async for _ in events:
            left -= 1
            if not left:
                break
        await events.aclose()  # type: ignore[attr-defined]
    async for _ in reading.read(replicas[0].url):
        pass
    check(reading, await whole_of(replicas[1].url, reading))


async def test_a_message_resumes_on_another_replica_after_the_one_that_wrote_it_was_killed(server: StartServer) -> None:
    first = await server(TURNSTREAM_DEMO_DELAY="0.05", TURNSTREAM_JOURNAL_INTERVAL="0.05")
    second = await server(TURNSTREAM_DEMO_DELAY="0.001", TURNSTREAM_JOURNAL_INTERVAL="0.05")
    reading, deltas = Reading(), 0
    events = reading.read(first.url)
    async for event in events:
        deltas += event["type"] == "content_block_delta"
        if deltas == 5:
            break
    await events.aclose()  # type: ignore[attr-defined]
    await first.kill()
    async for _ in reading.read(second.url):
        pass
    check(reading, await whole_of(second.url, reading))
