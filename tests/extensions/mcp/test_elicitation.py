"""Elicitations: during a call, an MCP server asks the user a question and receives the answer."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tests.extensions.mcp.mcp_servers import ROOT
from tests.support.http_client import Client, Event, Said
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from turnstream.extensions.mcp.connection import McpTiming
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.servers import McpServers
from turnstream.scripted import message_of, text, tool_use
from turnstream.tools.policy import Policy
from turnstream.tools.tool import Tool
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")

ARGUMENTS = ("-m", "tests.extensions.mcp.mcp_asking")
NEW = McpServer("new", command=sys.executable, args=ARGUMENTS, cwd=ROOT)
OLD = replace(NEW, name="old", args=(*ARGUMENTS, "--old"))
SERVERS = pytest.mark.parametrize("asking", [NEW, OLD], ids=["new", "old"])


class Desk(NamedTuple):
    """A server that offers the tools of an MCP server. `asking` is the name of the MCP server."""

    server: Server
    client: Client
    asking: str


Open = Callable[[McpServer], Awaitable[Desk]]


@dataclass
class Started:
    """The MCP servers that are already running, one for each declaration. They are shared, because the start of a
    server takes longer than a test.
    """

    stack: AsyncExitStack
    servers: dict[str, McpServers] = field(default_factory=dict)

    def tools(self) -> Mapping[str, Tool]:
        return {name: tool for servers in self.servers.values() for name, tool in servers.tools().items()}

    async def start(self, asking: McpServer) -> None:
        if asking.name not in self.servers:
            starting = McpServers([asking], McpTiming(connect_timeout=60))
            self.servers[asking.name] = await self.stack.enter_async_context(starting)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def opened(shared_database_url: str, document: Document) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:
        started = Started(stack)
        server = await stack.enter_async_context(serving(shared_database_url, Toolset([], sources=[started])))
        client = await stack.enter_async_context(Client(server.url, document))

        async def open(asking: McpServer) -> Desk:
            await started.start(asking)
            return Desk(server, client, asking.name)

        yield open


async def booked(desk: Desk, *calls: tuple[str, str]) -> Said:
    server, client, asking = desk
    booking = message_of(*(tool_use(f"{asking}__book", {"port": port}, id) for id, port in calls))
    return await client.say(await client.chat(), model=server.scripts.model(booking, message_of(text("Done."))))


async def asked(client: Client, turn: Said) -> Event:
    async with client.follow(turn.stream_url) as events:
        async for event in events:
            if event.name == "action_required":
                return event
    raise AssertionError("nothing was asked for")


def answer_to(action: Any, kind: str, **content: Any) -> dict[str, Any]:
    ids = {"tool_use_id": action["tool_use_id"], "input_digest": action["input_digest"]}
    return {"type": "answer", **ids, "action": kind, **({"content": content} if content else {})}


async def act(client: Client, turn: Said, *actions: Any, expect: int = 202) -> Any:
    return await client.json("POST", f"{turn.url}/actions", expect, json={"actions": list(actions)})


async def results(client: Client, turn: Said) -> dict[str, str]:
    await client.events(turn.stream_url)
    blocks = (await client.json("GET", turn.url))["blocks"]
    return {block["tool_use_id"]: block["text"] for block in blocks if block["type"] == "tool_result"}


@SERVERS
async def test_a_server_asks_a_person_in_the_middle_of_a_call(opened: Open, asking: McpServer) -> None:
    desk = await opened(asking)
    client = desk.client
    turn = await booked(desk, ("a", "Oslo"))
    event = await asked(client, turn)
    (action,) = event.data["calls"]
    assert (event.id, action["type"], action["name"], action["tool_use_id"]) == (
        None,
        "elicitation",
        f"{asking.name}__book",
        "a",
    )
    assert action["input"]["message"] == "How many nights in Oslo?"
    assert action["input"]["schema"]["properties"]["nights"]["type"] == "integer"
    assert action["expires_at"] is not None
    found = await client.json("GET", turn.url)
    assert (found["status"], found["actions"]) == ("running", [action])
    (waiting,) = (await client.json("GET", "/api/waiting"))["calls"]
    assert (waiting["turn"], waiting["tool_use_id"], waiting["type"]) == (turn.assistant["id"], "a", "elicitation")
    assert "How many nights" in waiting["input"]
    refused = await act(client, turn, answer_to(action, "accept", nights="many"), expect=422)
    assert [error["field"] for error in refused["errors"]] == ["actions.0.content"]
    await act(client, turn, answer_to({**action, "input_digest": "0"}, "accept", nights=2), expect=422)
    approval = {"type": "approve", "tool_use_id": "a", "input_digest": action["input_digest"]}
    await act(client, turn, approval, expect=422)
    done = await act(client, turn, answer_to(action, "accept", nights=2, quiet=True))
    assert done["actions"] == []
    told = (await results(client, turn))["a"]
    assert told.startswith("Oslo accept")
    assert "2" in told
    assert "True" in told
    await act(client, turn, answer_to(action, "accept", nights=3), expect=409)
    assert (await client.json("GET", "/api/waiting"))["count"] == 0


@SERVERS
@pytest.mark.parametrize("kind", ["decline", "cancel"])
async def test_a_person_may_refuse_to_answer(opened: Open, asking: McpServer, kind: str) -> None:
    desk = await opened(asking)
    turn = await booked(desk, ("a", "Oslo"))
    (action,) = (await asked(desk.client, turn)).data["calls"]
    await act(desk.client, turn, answer_to(action, kind, nights=1), expect=422)
    await act(desk.client, turn, answer_to(action, kind))
    assert (await results(desk.client, turn))["a"] == f"Oslo {kind} None"


@SERVERS
async def test_without_an_answer_the_server_gets_a_decline_after_a_while(opened: Open, asking: McpServer) -> None:
    desk = await opened(replace(asking, name=f"{asking.name}_soon", elicitation=0.3))
    turn = await booked(desk, ("a", "Oslo"))
    assert (await results(desk.client, turn))["a"] == "Oslo decline None"


@SERVERS
async def test_a_server_that_may_not_ask_gets_no_answer(opened: Open, asking: McpServer) -> None:
    desk = await opened(replace(asking, name=f"{asking.name}_silent", elicitation=None))
    turn = await booked(desk, ("a", "Oslo"))
    events = await desk.client.events(turn.stream_url)
    assert "action_required" not in [event.name for event in events]


async def test_the_time_of_a_call_does_not_run_while_a_person_thinks(opened: Open) -> None:
    desk = await opened(replace(OLD, name="old_quick", policy=Policy(timeout=1.0)))
    turn = await booked(desk, ("a", "Oslo"))
    (action,) = (await asked(desk.client, turn)).data["calls"]
    await asyncio.sleep(1.3)  # this wait is longer than the time limit of the call
    await act(desk.client, turn, answer_to(action, "accept", nights=2))
    assert (await results(desk.client, turn))["a"].startswith("Oslo accept")


async def test_two_calls_ask_at_once_and_each_gets_its_own_answer(opened: Open) -> None:
    desk = await opened(NEW)
    client = desk.client
    turn = await booked(desk, ("a", "Oslo"), ("b", "Bergen"))
    actions: list[Any] = []
    async with client.follow(turn.stream_url) as events:
        async for event in events:
            if event.name == "action_required" and len(actions := event.data["calls"]) == 2:
                break
    nights = {"a": 2, "b": 3}
    for action in actions:
        await act(client, turn, answer_to(action, "accept", nights=nights[action["tool_use_id"]]))
    told = await results(client, turn)
    assert ("2" in told["a"], "3" in told["b"]) == (True, True)


async def test_an_old_server_that_asks_during_two_calls_is_not_answered_by_chance(opened: Open) -> None:
    desk = await opened(OLD)
    with capture_logs() as lines:
        told = await results(desk.client, await booked(desk, ("a", "Oslo"), ("b", "Bergen")))
    assert "Bergen cancel None" in told.values()
    assert "mcp.elicitation_unclear" in [line["event"] for line in lines]


@SERVERS
@pytest.mark.parametrize(
    ("url", "told"), [("https://sign.example/in", "signed in: accept"), ("javascript:alert(1)", "signed in: decline")]
)
async def test_a_person_is_sent_to_a_page_of_the_web_and_to_nothing_else(
    opened: Open, asking: McpServer, url: str, told: str
) -> None:
    desk = await opened(asking)
    server, client, name = desk
    calls = message_of(tool_use(f"{name}__sign_in", {"url": url}, "a"))
    model = server.scripts.model(calls, message_of(text("Done.")))
    turn = await client.say(await client.chat(), model=model)
    if told.endswith("accept"):
        (action,) = (await asked(client, turn)).data["calls"]
        assert action["input"] == {"message": "Sign in there.", "url": url}
        await act(client, turn, answer_to(action, "accept"))
    assert (await results(client, turn))["a"] == told


async def test_a_message_in_place_of_the_answer_cancels_the_question(opened: Open) -> None:
    desk = await opened(NEW)
    client = desk.client
    turn = await booked(desk, ("a", "Oslo"))
    await asked(client, turn)
    chat = turn.url.rpartition("/turns/")[0]
    body = {"role": "user", "blocks": [{"type": "text", "text": "Never mind"}], "on_busy": "steer"}
    await client.json("POST", f"{chat}/turns", 202, json=body)
    assert (await results(client, turn))["a"] == "Oslo cancel None"


async def test_a_reader_that_comes_later_is_asked_too(opened: Open) -> None:
    desk = await opened(NEW)
    client = desk.client
    turn = await booked(desk, ("a", "Oslo"))
    first = await asked(client, turn)
    cursor = (await client.json("GET", turn.url))["cursor"]
    async with client.follow(turn.stream_url, cursor) as events:
        again = await anext(events)
    assert (again.name, again.data) == ("action_required", first.data)
    await act(client, turn, answer_to(first.data["calls"][0], "decline"))
    await results(client, turn)
