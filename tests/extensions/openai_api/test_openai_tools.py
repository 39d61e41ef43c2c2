"""Tools in requests of the package `openai`: tools that the client runs, and tools that the server runs."""

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.libraries.dialects.chats import PROGRAM_EXPIRY
from turnstream.scripted import message_of, text, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOOK: Any = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
OF_SERVER: Any = {"type": "mcp", "server_label": "turnstream"}
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT: Any = {"type": "json_schema", "name": "a", "schema": SCHEMA}
SERVER_TOOLS = {"doc_tree", "doc_view", "doc_search", "read_result"}

REQUESTS: Any = [
    ({}, True, False),
    ({"tools": []}, False, False),
    ({"tools": [LOOK]}, False, True),
    ({"tools": [LOOK], "tool_choice": "required"}, False, True),
    ({"tools": [LOOK, OF_SERVER]}, True, True),
    ({"tools": [OF_SERVER]}, True, False),
    ({"text": {"format": FORMAT}}, False, False),
    ({"text": {"format": FORMAT}, "tools": [OF_SERVER]}, True, False),
]


@pytest.mark.parametrize(("members", "of_server", "of_client"), REQUESTS)
async def test_a_request_with_tools_or_a_format_of_its_own_has_tools_of_the_server_on_request(
    server: Server, client: AsyncOpenAI, members: Any, of_server: bool, of_client: bool
) -> None:
    model, provider = server.scripts.provider(message_of(text('{"a": 1}')))
    await client.responses.create(model=model, input="Go", background=True, **members)
    made = await client.responses.create(model=model, input="Go", **members)
    assert made.status in {"completed", "failed"}
    names = {tool.name for tool in provider.requests[0].tools}
    assert (names >= SERVER_TOOLS, "look" in names) == (of_server, of_client)
    assert of_server or SERVER_TOOLS.isdisjoint(names)


async def test_a_completion_with_functions_has_no_tools_of_the_server(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(message_of(tool_use("look", {}, "c1")))
    function: Any = {"type": "function", "function": {"name": "look", "parameters": LOOK["parameters"]}}
    asked = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Go"}], tools=[function], tool_choice="required"
    )
    assert asked.choices[0].finish_reason == "tool_calls"
    assert [tool.name for tool in provider.requests[0].tools] == ["look"]


@pytest.mark.parametrize("before", [[], [LOOK]])
async def test_errors_count_the_tools_of_the_client(client: AsyncOpenAI, before: Any) -> None:
    forbidden: Any = {"type": "code_interpreter", "container": "c"}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="plain", input="Go", tools=[*before, forbidden, OF_SERVER])
    assert refused.value.param == f"tools[{len(before)}].type"
    wrong: Any = {**LOOK, "name": "no name"}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="plain", input="Go", tools=[*before, wrong, OF_SERVER])
    assert refused.value.param == f"tools[{len(before)}].name"


async def test_calls_of_a_program_are_in_no_list_of_a_person_and_expire(
    server: Server, api: Client, client: AsyncOpenAI
) -> None:
    model = server.scripts.model(message_of(tool_use("look", {}, "c1")))
    asked = await client.responses.create(model=model, input="Go", tools=[LOOK])
    assert asked.output[0].type == "function_call"
    assert (await api.json("GET", "/api/waiting"))["count"] == 0
    (chat,) = (await api.json("GET", "/api/chats"))["chats"]
    turn = (await api.json("GET", f"/api/chats/{chat['id']}/turns"))["turns"][-1]
    assert turn["status"] == "waiting"
    assert [action["expires_at"] is not None for action in turn["actions"]] == [True]
    assert PROGRAM_EXPIRY == 3600


async def test_a_choice_of_allowed_tools_leaves_these_alone(server: Server, client: AsyncOpenAI) -> None:
    other: Any = {**LOOK, "name": "hear"}
    custom: Any = {"type": "custom", "name": "patch"}
    model, provider = server.scripts.provider(*(message_of(text("Yes.")) for _ in range(3)))
    named: Any = [{"type": "function", "name": "look"}, {"type": "custom", "name": "patch"}]
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": named}
    await client.responses.create(model=model, input="Go", tools=[LOOK, other, custom, OF_SERVER], tool_choice=choice)
    assert [tool.name for tool in provider.requests[0].tools] == ["look", "patch"]
    assert provider.requests[0].params["tool_choice"] == {"type": "any"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "turnstream"}]}
    await client.responses.create(model=model, input="Go on", tools=[LOOK, OF_SERVER], tool_choice=choice)
    assert {tool.name for tool in provider.requests[1].tools} == SERVER_TOOLS
    functions: Any = [{"type": "function", "function": {"name": name}} for name in ("look", "hear")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": functions[:1]}}
    asked: Any = [{"role": "user", "content": "Go"}]
    await client.chat.completions.create(model=model, messages=asked, tools=functions, tool_choice=choice)
    assert [tool.name for tool in provider.requests[2].tools] == ["look"]
    none: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "fly"}]}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="plain", input="Go", tools=[LOOK], tool_choice=none)
    assert refused.value.param == "tool_choice.tools"
