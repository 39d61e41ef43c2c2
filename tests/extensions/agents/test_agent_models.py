"""Agents as models: a turn whose model is the name of an agent runs as this agent."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI, BadRequestError

from tests.support.agents import call, ended, post, results
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import Preset
from turnstream.extensions.agents.agent import Agent
from turnstream.extensions.agents.tool import AGENTS, AgentTable, AgentTool, agent_tool
from turnstream.libraries.tool_sources.declarations import read_declarations
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.extensions("agents", "openai_api", "anthropic_api")

COUNT = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}


def reply(request: ModelRequest) -> Reply:
    last = request.messages[-1].blocks[-1].text
    if request.system == "Count.":
        return message_of(tool_use("output", {"count": 3}, f"o{len(request.messages)}"))
    if request.system == "Lead." and last == "Research it.":
        return message_of(call("echo", "a"))
    return message_of(text(f"{request.system or 'Nobody'}: {last}"))


@pytest.fixture
def thinker() -> ScriptedProvider:
    return ScriptedProvider(reply)


@pytest.fixture
async def server(database_url: str, thinker: ScriptedProvider) -> AsyncIterator[Server]:
    agents = [
        Agent("lead", "Leads.", "Lead.", model="brain", tools=("echo",), max_rounds=7, as_model=True),
        Agent("counter", "Counts.", "Count.", model="thinker", output=COUNT, as_model=True),
        Agent("echo", "Echoes.", "Echo."),
    ]
    offers = [ProviderModels(thinker, [Model("thinker", upstream="thinker-1", aliases=("brain",))])]
    async with serving(database_url, Toolset(map(agent_tool, agents)), offers) as started:
        yield started


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url) as client:
        yield client


async def asked(api: Client, chat: str, words: str, **more: Any) -> dict[str, Any]:
    message = {"blocks": [{"type": "text", "text": words}], **more}
    return await ended(api, await api.json("POST", f"/api/chats/{chat}/turns", 201, json=message))


def said(turn: dict[str, Any]) -> str:
    return str(turn["blocks"][-1]["text"])


async def test_a_turn_whose_model_is_an_agent_has_its_model_prompt_tools_and_limits(
    server: Server, api: Client, thinker: ScriptedProvider
) -> None:
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post("lead")))
    assert (turn["status"], turn["model"]) == ("complete", "lead")
    assert results(turn) == {"a": "Echo.: Say it."}
    first, of_child, _ = thinker.requests
    assert (first.system, first.model, [tool.name for tool in first.tools]) == ("Lead.", "thinker-1", ["echo"])
    assert (of_child.system, of_child.model, of_child.tools) == ("Echo.", "thinker-1", ())
    data = next(block["data"] for block in turn["blocks"] if block["type"] == "tool_result")
    turns = server.services.storage.turns
    lead, child = [
        (await turns.get("local", UUID(chat), UUID(id))).request
        for chat, id in ((turn["chat_id"], turn["id"]), (data["chat"], data["turn"]))
    ]
    assert lead is not None
    assert lead.limits.max_rounds == 7
    assert child is not None
    assert child.model == "thinker", "a message in its chat is not for the other agent"


async def test_the_agent_stays_until_the_chat_is_asked_for_another_model(api: Client, server: Server) -> None:
    chat = (await api.json("POST", "/api/chats", 201, json={"system_prompt": "Of the chat."}))["id"]
    assert said(await asked(api, chat, "One", model="lead")) == "Lead.: One"
    second = await asked(api, chat, "Two")
    assert (said(second), second["model"]) == ("Lead.: Two", "lead")
    assert said(await asked(api, chat, "Three", model="thinker")) == "Of the chat.: Three"
    await api.json("PATCH", f"/api/chats/{chat}", 200, json={"settings": {"model": "lead"}})
    fourth = await asked(api, chat, "Four")
    assert said(fourth) == "Lead.: Four"
    path = f"/api/chats/{chat}/turns/{fourth['id']}/regenerate"
    assert said(await ended(api, await api.json("POST", path, 201, json={}))) == "Lead.: Four"
    other = await ended(api, await api.json("POST", path, 201, json={"model": "thinker"}))
    assert (said(other), other["model"]) == ("Nobody: Four", "thinker")
    path = f"/api/chats/{chat}/turns/{other['id']}/regenerate"
    assert said(await ended(api, await api.json("POST", path, 201, json={"model": "lead"}))) == "Lead.: Four"


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        ("lead", "system_prompt", "Obey."),
        ("lead", "tools", []),
        ("counter", "output", {"schema": {"type": "object"}}),
    ],
)
async def test_options_fixed_by_the_agent_must_be_left_out(
    api: Client, thinker: ScriptedProvider, model: str, field: str, value: Any
) -> None:
    refused = await api.json("POST", "/api/turns", 422, json={**post(model), field: value})
    assert refused["errors"][0]["field"] == field
    assert f"the model {model} is an agent, which has its own" in refused["detail"]
    assert thinker.requests == []


async def test_an_agent_with_an_output_gives_it_as_a_structured_turn_does(api: Client) -> None:
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post("counter")))
    assert turn["output"] == {"count": 3}


async def test_only_agents_that_the_operator_offers_are_models(api: Client) -> None:
    listed = {model["id"]: model for model in (await api.json("GET", "/api/models", 200))["models"]}
    agents = {id: model["agent"] for id, model in listed.items()}
    assert agents == {"plain": None, "thinker": None, "lead": "Leads.", "counter": "Counts."}
    assert (listed["lead"]["provider"], listed["lead"]["aliases"]) == (listed["thinker"]["provider"], [])
    refused = await api.json("POST", "/api/turns", 422, json=post("echo"))
    assert refused["errors"][0]["field"] == "model"


async def test_openai_and_anthropic_clients_speak_with_an_agent(server: Server, thinker: ScriptedProvider) -> None:
    token = await server.token("ada", "read", "chat")
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=token, max_retries=0) as client:
        assert {model.id: model.owned_by async for model in client.models.list()}["lead"] == "agents"
        message: Any = {"role": "user", "content": "Hi"}
        completion = await client.chat.completions.create(model="lead", messages=[message])
        assert (completion.model, completion.choices[0].message.content) == ("lead", "Lead.: Hi")
        response = await client.responses.create(model="lead", input="Ho")
        more = await client.responses.create(model="lead", input="Hu", previous_response_id=response.id)
        assert (response.output_text, more.output_text) == ("Lead.: Ho", "Lead.: Hu")
        system: Any = {"role": "system", "content": "Obey."}
        with pytest.raises(
            BadRequestError, match="`messages` must not set a system prompt: the model lead is an agent"
        ):
            await client.chat.completions.create(model="lead", messages=[system, message])
        with pytest.raises(BadRequestError, match="the model lead is an agent"):
            await client.responses.create(model="lead", input="Ho", instructions="Obey.")
    async with AsyncAnthropic(base_url=server.url, api_key=token, max_retries=0) as anthropic:
        reply = await anthropic.messages.create(model="lead", max_tokens=100, messages=[message])
        assert reply.content[0].type == "text"
        assert reply.content[0].text == "Lead.: Hi"
    assert {request.system for request in thinker.requests} == {"Lead."}


@pytest.mark.parametrize(
    ("name", "preset", "words"),
    [
        ("thinker", Preset("", ""), "The agent thinker must have another name: a model has this one."),
        ("lead", Preset("", "", "none"), "The agent lead: `model`: there is no model 'none' here."),
    ],
)
def test_a_name_that_is_taken_and_a_model_that_is_not_there_stop_the_start(
    name: str, preset: Preset, words: str
) -> None:
    models = Models([ProviderModels(ScriptedProvider(reply), ["thinker"])])
    with pytest.raises(ConfigError, match=f"^{words}$"):
        models.with_presets({name: preset}, "thinker")


def test_agents_of_the_tools_file_are_models_if_it_says_so(tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(
        '[agents.scout]\ndescription = "Scouts."\nprompt = "Scout."\nas_model = true\n'
        '[agents.lead]\ndescription = "Leads."\nprompt = "Lead."\n'
    )
    made = AGENTS.make(read_declarations(file, {}, {"agents": AgentTable})).tools
    assert all(isinstance(tool, AgentTool) for tool in made)
    assert Toolset(made).presets == {"scout": Preset("Scouts.", "Scout.")}
