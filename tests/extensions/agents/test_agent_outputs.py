"""Agents with an output schema: the agent's answer is JSON that matches the schema."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.agents import call, ended, post, results, script
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.domain.errors import ConfigError
from turnstream.extensions.agents.agent import Agent
from turnstream.extensions.agents.children import Children
from turnstream.extensions.agents.tool import AGENTS, AgentTable, AgentTool, agent_tool, bind
from turnstream.libraries.tool_sources.declarations import read_declarations
from turnstream.scripted import message_of, text, tool_use
from turnstream.tools.toolset import Toolset

HILL = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "height": {"type": "integer"}},
    "required": ["name", "height"],
    "additionalProperties": False,
}
GOOD = {"name": "Drumlin", "height": 40}


def output(value: Any, id: str) -> Any:
    return message_of(tool_use("output", value, id))


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    surveyor = Agent("surveyor", "Surveys hills.", "Survey.", output=HILL)
    counter = Agent("counter", "Counts.", "Count.", output={"type": "array", "items": {"type": "integer"}})
    async with serving(database_url, Toolset([agent_tool(surveyor), agent_tool(counter)])) as started:
        yield started


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url) as client:
        yield client


async def test_the_answer_of_an_agent_is_its_output_and_a_mistake_is_tried_again(server: Server, api: Client) -> None:
    model, provider = script(
        server,
        message_of(call("surveyor", "a")),
        output({"name": "Drumlin"}, "o1"),
        output(GOOD, "o2"),
        message_of(call("counter", "b")),
        output({"value": [1, 2]}, "o3"),
        message_of(text("So.")),
    )
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    assert turn["status"] == "complete"
    assert {id: json.loads(result) for id, result in results(turn).items()} == {"a": GOOD, "b": [1, 2]}
    assert [tool.name for tool in provider.requests[1].tools] == ["output"]


async def test_an_output_that_never_meets_the_schema_is_an_error_that_names_the_field(
    server: Server, api: Client
) -> None:
    wrong = [output({"name": "Drumlin", "height": "high"}, f"o{number}") for number in range(3)]
    model, _ = script(server, message_of(call("surveyor", "a")), *wrong, message_of(text("So.")))
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    (result,) = [block for block in turn["blocks"] if block["type"] == "tool_result"]
    assert (turn["status"], result["is_error"]) == ("complete", True)
    assert "The agent surveyor did not end its work (error)" in result["text"]
    assert "height" in result["text"]


async def test_a_format_of_the_calling_turn_is_none_of_its_agents(server: Server, api: Client) -> None:
    model, provider = script(server, message_of(call("surveyor", "a")), output(GOOD, "o"), message_of(text("{}")))
    format = {"type": "json_schema", "schema": HILL}
    asked = {**post(model), "params": {"output_config": {"effort": "low", "format": format}}}
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=asked))
    assert json.loads(results(turn)["a"]) == GOOD
    formats = [request.params["output_config"].get("format") for request in provider.requests]
    assert formats == [format, None, format]
    assert {request.params["output_config"]["effort"] for request in provider.requests} == {"low"}


def test_an_output_schema_that_is_not_valid_stops_the_start() -> None:
    wrong = agent_tool(Agent("wrong", "Wrong.", "Wrong.", output={"type": "thing"}))
    with pytest.raises(ConfigError, match=r"^The agent wrong: `output`: .*thing"):
        bind(Toolset([wrong]), cast("Children", None))


def test_an_output_schema_of_the_tools_file(tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(
        '[agents.scout]\ndescription = "Scouts."\nprompt = "Scout."\n'
        '[agents.scout.output]\ntype = "object"\nproperties.hills = { type = "integer" }\n'
    )
    (made,) = AGENTS.make(read_declarations(file, {}, {"agents": AgentTable})).tools
    assert isinstance(made, AgentTool)
    assert made.agent.output == {"type": "object", "properties": {"hills": {"type": "integer"}}}
