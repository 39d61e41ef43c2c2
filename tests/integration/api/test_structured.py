"""Structured turns as a client of the API sees them."""

import json
from uuid import uuid4

import pytest

from tests.support.http_client import Client, Event
from tests.support.http_server import Server, pausing
from turnstream.llm.models.catalog import Model, ProviderModels
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCHEMA = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
STRICT = {**SCHEMA, "additionalProperties": False}
CAN = frozenset({"tools", "structured_output"})


def model_that_can(server: Server, *replies: Reply) -> tuple[str, ScriptedProvider]:
    name, provider = f"script-{uuid4().hex}", ScriptedProvider(replies)
    server.scripts.offers.append(ProviderModels(provider, [Model(name, can=CAN)]))
    return name, provider


def streamed(events: list[Event], index: int) -> str:
    return "".join(e.data["text"] for e in events if e.name == "block_delta" and e.data["index"] == index)


async def test_a_model_that_can_is_held_to_the_schema_and_its_text_is_the_output(api: Client, server: Server) -> None:
    model, provider = model_that_can(
        server, message_of(tool_use("doc_tree", {}, "a")), message_of(text('{"year":', " 1969}"))
    )
    asked = await api.ask(await api.chat(), model=model, output={"schema": STRICT})
    turn = asked.assistant
    assert (turn["status"], turn["stop_reason"], turn["output"]) == ("complete", "output", {"year": 1969})
    assert turn["phase"] is None
    answer, verdict = turn["blocks"][2:]
    assert answer["text"] == '{"year": 1969}'
    assert (verdict["type"], verdict["data"]["taken"]) == ("verdict", True)
    assert streamed(await api.events(asked.stream_url), answer["index"]) == answer["text"]
    formats = [request.params["output_config"]["format"] for request in provider.requests]
    assert formats == [{"type": "json_schema", "schema": STRICT}] * 2
    assert "output" not in [spec.name for spec in provider.requests[0].tools]


async def test_a_schema_that_leaves_more_open_is_put_out_by_the_tool(api: Client, server: Server) -> None:
    model, provider = model_that_can(server, message_of(tool_use("output", {"year": 1969}, "a")))
    turn = (await api.ask(await api.chat(), model=model, output={"schema": SCHEMA})).assistant
    assert (turn["stop_reason"], turn["output"]) == ("output", {"year": 1969})
    assert "output_config" not in provider.requests[0].params


@pytest.mark.parametrize("schema", [SCHEMA, STRICT])
async def test_a_cancelled_one_tells_its_phase_in_the_stream_and_on_the_turn(
    api: Client, server: Server, schema: dict[str, object]
) -> None:
    pause = Pause()
    model, _ = model_that_can(server, pausing(pause, '{"ye', "ar"))
    asked = await api.say(await api.chat(), model=model, output={"schema": schema})
    await pause.reached.wait()
    await api.post(f"{asked.url}/cancel")
    *_, end = await api.events(asked.stream_url)
    assert (end.name, end.data["phase"]) == ("turn_cancelled", "iterating")
    assert (await api.json("GET", asked.url))["phase"] == "iterating"


@pytest.mark.parametrize("can", [True, False])
async def test_a_list_is_an_output_too_and_a_failure_has_its_figures(api: Client, server: Server, can: bool) -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    description = "The years of the landings."
    replies = [
        message_of(text(json.dumps({"value": years})) if can else tool_use("years", {"value": years}, f"o{place}"))
        for place, years in enumerate([["x"], [1969, 1971], ["x"]])
    ]
    name, provider = f"script-{uuid4().hex}", ScriptedProvider(replies)
    abilities = CAN if can else frozenset({"tools"})
    server.scripts.offers.append(ProviderModels(provider, [Model(name, can=abilities)]))
    output = {"schema": schema, "name": "years", "description": description}
    turn = (await api.ask(chat := await api.chat(), model=name, output=output)).assistant
    assert (turn["stop_reason"], turn["output"]) == ("output", [1969, 1971])
    if can:
        sent = provider.requests[0].params["output_config"]["format"]["schema"]
        assert (sent["properties"], sent["description"]) == ({"value": schema}, description)
    once = await api.ask(chat, model=name, output={**output, "max_attempts": 1})
    error = once.assistant["error"]
    assert (error["type"], error["details"]["attempt"]) == ("max_attempts", 1)
    assert "'x' is not of type 'integer'" in error["details"]["complaint"]
    *_, end = await api.events(once.stream_url)
    assert end.data["error"] == error
