"""A search among many tools: what requests contain, and how the model calls a tool that the search has found."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.domain.deferred import CALL_TOOL, FIND_TOOLS
from turnstream.extensions.tool_search.deferral import Deferral, SearchTools
from turnstream.scripted import message_of, text, tool_use
from turnstream.tools.tool import Tool, tool
from turnstream.tools.toolset import Toolset


def many(number: int) -> list[Tool]:
    async def function(place: str) -> str:
        """Waters plants at a place."""
        return f"watered {place}"

    return [tool(name=f"garden_water_{each}", read_only=True)(function) for each in range(number)]


@tool(approval="always")
async def pay_bill(euros: int, to: str = "nobody") -> str:
    """Pays a bill."""
    return f"paid {euros} to {to}"


@tool(background=True)
async def bake(bread: str) -> str:
    """Bakes bread."""
    return f"baked {bread}"


@tool(calls_per_turn=1)
async def ring() -> str:
    """Rings a bell."""
    return "rang"


@tool
async def keep_me() -> str:
    """Stays."""
    return "stayed"


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    deferral = Deferral(10, None, ["keep_*"])
    toolset = Toolset([*many(20), pay_bill, bake, ring, keep_me], sources=[SearchTools()], offers=[deferral.offer])
    async with serving(database_url, toolset) as started:
        yield started


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url) as client:
        yield client


def call(name: str, id: str, **input: Any) -> Any:
    return tool_use(CALL_TOOL, {"name": name, "input": input}, id)


def post(model: str, **more: Any) -> dict[str, Any]:
    return {"blocks": [{"type": "text", "text": "Do it."}], "model": model, **more}


async def ended(api: Client, exchange: dict[str, Any]) -> dict[str, Any]:
    await api.events(exchange["stream_url"])
    answer = exchange["assistant_turn"]
    return dict(await api.json("GET", f"/api/chats/{answer['chat_id']}/turns/{answer['id']}"))


async def waiting(api: Client, exchange: dict[str, Any], call: str) -> dict[str, Any]:
    """Waits until the turn waits for an answer about `call`. Returns the turn."""
    async with api.follow(exchange["stream_url"]) as events:
        async for event in events:
            if event.name == "action_required" and any(a["tool_use_id"] == call for a in event.data["calls"]):
                break
    answer = exchange["assistant_turn"]
    return dict(await api.json("GET", f"/api/chats/{answer['chat_id']}/turns/{answer['id']}"))


def results(turn: dict[str, Any]) -> dict[str, str]:
    return {block["tool_use_id"]: block["text"] for block in turn["blocks"] if block["type"] == "tool_result"}


async def test_the_tools_of_all_requests_are_the_same_few_and_a_found_tool_is_called_by_its_name(
    server: Server, api: Client
) -> None:
    model, provider = server.scripts.provider(
        message_of(tool_use(FIND_TOOLS, {"query": "water the plants", "count": 2}, "f")),
        message_of(call("garden_water_7", "a", place="door"), call("ring", "b"), call("ring", "c")),
        message_of(text("Done.")),
        message_of(call("garden_water_3", "d", place="roof")),
        message_of(text("Again.")),
    )
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    assert turn["status"] == "complete"
    found = results(turn)
    assert "garden_water_0: Waters plants at a place." in found["f"]
    assert '"place"' in found["f"]
    assert found["f"].count("Schema of its input") == 2
    assert "search by the name for a definition: garden_water_" in found["f"]
    assert (found["a"], found["b"]) == ("watered door", "rang")
    assert "ring has reached its limit of 1 calls" in found["c"]
    follow = {**post(model), "parent_id": turn["id"]}
    other = await ended(api, await api.json("POST", f"/api/chats/{turn['chat_id']}/turns", 201, json=follow))
    assert results(other) == {"d": "watered roof"}
    sent = [[spec.name for spec in request.tools] for request in provider.requests]
    assert sent == [["keep_me", FIND_TOOLS, CALL_TOOL]] * 5
    texts = {json.dumps([spec.description for spec in request.tools]) for request in provider.requests}
    assert len(texts) == 1
    (overview,) = texts
    assert "23 tools can be found" in overview
    assert "garden: 20, such as garden_water_0" in overview
    shown = [block["name"] for block in turn["blocks"] if block["type"] == "tool_use"]
    assert shown == [FIND_TOOLS, CALL_TOOL, CALL_TOOL, CALL_TOOL]


async def test_an_approval_is_one_of_the_named_tool_with_its_own_input(server: Server, api: Client) -> None:
    model, _ = server.scripts.provider(
        message_of(call("pay_bill", "a", euros=3)),
        message_of(call("pay_bill", "b", euros=4)),
        message_of(call("pay_bill", "c", euros=400)),
        message_of(text("Done.")),
    )
    exchange = await api.json("POST", "/api/turns", 201, json=post(model))
    answer = exchange["assistant_turn"]
    path = f"/api/chats/{answer['chat_id']}/turns/{answer['id']}"
    (action,) = (await waiting(api, exchange, "a"))["actions"]
    assert (action["name"], action["input"]) == ("pay_bill", {"euros": 3})
    approve = {"type": "approve", "tool_use_id": "a", "input_digest": action["input_digest"]}
    refused = await api.json("POST", f"{path}/actions", 422, json={"actions": [{**approve, "input": {"euros": "x"}}]})
    assert "input" in refused["errors"][0]["field"]
    remember = {"scope": "chat", "when": {"euros": {"maximum": 100}}}
    body = {"actions": [{**approve, "input": {"euros": 5, "to": "Ada"}, "remember": remember}]}
    await api.json("POST", f"{path}/actions", 202, json=body)
    turn = await waiting(api, exchange, "c")
    assert results(turn)["a"].endswith("paid 5 to Ada")
    assert results(turn)["b"] == "paid 4 to nobody"  # the approval that was given before is remembered
    (action,) = turn["actions"]
    deny = {"type": "deny", "tool_use_id": "c", "input_digest": action["input_digest"]}
    await api.json("POST", f"{path}/actions", 202, json={"actions": [deny]})
    assert "did not allow this call of pay_bill" in results(await ended(api, exchange))["c"]


async def test_a_background_tool_is_found_and_runs_as_a_job(server: Server, api: Client) -> None:
    model, _ = server.scripts.provider(message_of(call("bake", "a", bread="rye")), message_of(text("Done.")))
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    assert results(turn) == {"a": "baked rye"}


async def test_a_call_of_a_missing_tool_is_answered_with_similar_names(server: Server, api: Client) -> None:
    model, _ = server.scripts.provider(
        message_of(call("garden_water", "a"), call("find_tools", "b"), tool_use(CALL_TOOL, {"input": {}}, "c")),
        message_of(tool_use(FIND_TOOLS, {"query": "xylophone"}, "d")),
        message_of(text("Done.")),
    )
    found = results(await ended(api, await api.json("POST", "/api/turns", 201, json=post(model))))
    assert found["a"].startswith("There is no tool 'garden_water'. Tools of similar names: garden_water_")
    assert found["b"].startswith("There is no tool 'find_tools'.")
    assert "name" in found["c"]
    assert found["d"].startswith("No tool has a word of 'xylophone'.")


async def test_a_request_with_few_tools_has_them_all(server: Server, api: Client) -> None:
    model, provider = server.scripts.provider(message_of(text("Done.")))
    await ended(api, await api.json("POST", "/api/turns", 201, json=post(model, tools=["ring", "bake"])))
    assert [[spec.name for spec in request.tools] for request in provider.requests] == [["ring", "bake"]]


async def test_another_tool_of_the_name_is_called_as_it_is(database_url: str) -> None:
    """A server without the search may have its own tool `call_tool`. A call of `call_tool` then runs this tool, and not
    the tool that the input names.
    """

    @tool
    async def call_tool(name: str) -> str:
        """Calls."""
        return f"called {name}"

    async with serving(database_url, Toolset([call_tool, pay_bill, ring])) as server, Client(server.url) as api:
        model, _ = server.scripts.provider(
            message_of(tool_use(CALL_TOOL, {"name": "ring"}, "a"), tool_use(CALL_TOOL, {"name": "pay_bill"}, "b")),
            message_of(text("Done.")),
        )
        turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    assert results(turn) == {"a": "called ring", "b": "called pay_bill"}
