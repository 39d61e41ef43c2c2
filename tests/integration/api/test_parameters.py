"""Model parameters on their way from the body of a turn to the provider's request body, and the refusals on the way."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import pytest
import pytest_asyncio
import structlog
from pydantic import BaseModel, create_model

from tests.integration.adapters import Talk, talking
from tests.integration.api.test_error_texts import Bodies, check
from tests.support.http_client import Client, said
from tests.support.http_server import Server, serving
from tests.support.model_apis import TABLES, guarded_names, parameters_of
from turnstream.domain.errors import TransientError
from turnstream.extensions.openai.quirks import QUIRKS
from turnstream.extensions.openapi.document import Json
from turnstream.llm.models.catalog import Model, ProviderModels
from turnstream.llm.parameters import Parameter
from turnstream.scripted import ScriptedProvider, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLAUDE = "claude-opus-5-5"
ALLOWED = "service_tier=flex, service_tier=auto, betas=context-1m-2025-08-07, store, metadata"


def answering(_: object) -> Any:
    return message_of(text("Yes."))


def offer(models: Sequence[Model | str], parameters: Sequence[Parameter]) -> ProviderModels:
    return ProviderModels(ScriptedProvider(answering), models, (), parameters)


@asynccontextmanager
async def talking_server(database_url: str, api: str, quirks: str = "openai") -> AsyncIterator[tuple[Client, Talk]]:
    """Starts a server with the model `m` behind the real adapter of this API, and yields its client."""
    async with AsyncExitStack() as stack:
        talk = await stack.enter_async_context(talking(api))
        talk.answers(talk.api.begun + talk.api.said + talk.api.end)
        talk.provider.quirks = QUIRKS[quirks]  # type: ignore[union-attr]
        known = ProviderModels(talk.provider, ["m"], (), parameters_of(api, quirks if api != "anthropic" else None))
        server = await stack.enter_async_context(serving(database_url, offers=[known], params_allow=ALLOWED))
        yield await stack.enter_async_context(Client(server.url)), talk


def sent(talk: Talk) -> Json:
    body: Json = json.loads(talk.server.requests[-1].body)
    return body


async def test_a_local_model_gets_its_sampling_parameters(database_url: str) -> None:
    params = {
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": -0.1,
        "repetition_penalty": 1.1,
        "logit_bias": {"50256": -100},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    async with talking_server(database_url, "openai-chat", "compatible") as (client, talk):
        await client.ask(await client.chat(), model="m", params={**params, "max_tokens": 9, "stop_sequences": ["END"]})
        body = sent(talk)
    assert {name: body[name] for name in params} == params
    assert (body["max_tokens"], body["stop"]) == (9, ["END"])


async def test_the_responses_api_gets_its_parameters(database_url: str) -> None:
    params = {"temperature": 1, "top_p": 0.5, "truncation": "auto", "max_tool_calls": 3, "service_tier": "flex"}
    more = {"verbosity": "low", "reasoning_effort": "minimal", "store": True, "metadata": {"team": "blue"}}
    async with talking_server(database_url, "openai-responses") as (client, talk):
        await client.ask(await client.chat(), model="m", params={**params, **more})
        body = sent(talk)
    assert {name: body[name] for name in params} == params
    assert (body["text"], body["reasoning"]) == ({"verbosity": "low"}, {"effort": "minimal"})
    assert (body["store"], body["metadata"]) == (True, {"team": "blue"})


async def test_anthropic_gets_its_parameters_and_the_betas_they_need(database_url: str) -> None:
    edits = [{"type": "clear_tool_uses_20250919"}, {"type": "compact_20260112"}]
    params = {
        "max_tokens": 9,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "context_management": {"edits": edits},
    }
    async with talking_server(database_url, "anthropic") as (client, talk):
        own = {**params, "betas": ["context-1m-2025-08-07"]}
        await client.ask(await client.chat(), model="m", params=own)
        body, headers = sent(talk), talk.server.requests[-1].headers
    assert {name: body[name] for name in params} == params
    betas = headers["anthropic-beta"].split(",")
    assert betas == ["context-1m-2025-08-07", "context-management-2025-06-27", "compact-2026-01-12"]


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "params", "field", "words"),
    [
        (
            CLAUDE,
            {"temperature": 1},
            "params.temperature",
            "it is a Claude model without sampling parameters; ",
        ),
        (CLAUDE, {"heat": 1}, "params.heat", f"the model does not take it; parameters of {CLAUDE} are `max_tokens`, "),
        ("o3", {"top_p": 1}, "params.top_p", "it is a reasoning model without sampling parameters"),
        ("gpt-4o", {"reasoning_effort": "low"}, "params.reasoning_effort", "it does not reason"),
        ("gpt-4o", {"temperature": 3}, "params.temperature", "must be at most 2"),
        ("gpt-4o", {"temperature": "hot"}, "params.temperature", "must be a number"),
        ("gpt-4o", {"stop_sequences": [1]}, "params.stop_sequences.0", "must be a string"),
        ("gpt-4o", {"verbosity": "loud"}, "params.verbosity", "must be 'low', 'medium' or 'high'"),
        ("gpt-4o", {"tool_choice": {"type": "any", "n": 1}}, "params.tool_choice.n", "known are `type`, `name`, "),
        ("gpt-4o", {"betas": ["x"]}, "params.betas", "the model does not take it"),
        (CLAUDE, {"speed": "fast"}, "params.speed", "the operator of this server has not allowed it"),
        (CLAUDE, {"betas": ["fast-mode-2026-02-01"]}, "params.betas", "a value that the operator of this server"),
        (CLAUDE, {"thinking": {"type": ["enabled"]}}, "params.thinking.type", "must be 'adaptive'"),
        ("small", {"max_tokens": 51}, "params.max_tokens", "must be at most 50, the longest reply of model small"),
        ("small", {"thinking": {"type": "adaptive"}}, "params.thinking", "does not support thinking"),
        ("small", {"output_config": {"format": {}}}, "params.output_config.format", "not support structured output"),
        ("picky", {"stop_sequences": []}, "params.stop_sequences", "the file of models lists it among"),
    ],
)
async def test_a_wrong_parameter_is_refused_by_name_with_those_there_are(
    client: Client, model: str, params: Json, field: str, words: str
) -> None:
    chat = await client.chat()
    turns = [
        await client.post(f"{chat}/turns", json={**said("x"), "model": model, "params": params}),
        await client.post("/api/turns", json={**said("x"), "model": model, "params": params}),
    ]
    for response in turns:
        check(response, field)
        assert words in response.json()["detail"]
        assert response.status_code == 422
    settings = await client.post("/api/chats", json={"settings": {"model": model, "params": params}})
    check(settings, f"settings.{field}")
    answered = await client.ask(chat)
    regenerated = await client.post(f"{answered.url}/regenerate", json={"model": model, "params": params})
    check(regenerated, field)
    options = {"model": model, "params": params}
    message = {"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
    body = {"id": "a", "trigger": "submit-message", "messages": [message], "turnstream": options}
    check(await client.post("/api/ai-sdk/chat", json=body), field)


async def test_each_wrong_parameter_has_a_sentence(client: Client) -> None:
    body = {**said("x"), "model": CLAUDE, "params": {"max_tokens": 0, "seed": 1, "speed": "fast"}}
    refused = (await client.post("/api/turns", json=body)).json()
    assert [error["field"] for error in refused["errors"]] == ["params.max_tokens", "params.seed", "params.speed"]


async def test_a_refusal_names_neither_allowed_nor_guarded_values(client: Client) -> None:
    body = {**said("x"), "model": CLAUDE, "params": {"betas": ["x"], "container": "c", "made_up": 1}}
    refused = (await client.post("/api/turns", json=body)).json()
    assert "context-1m" not in str(refused)
    assert not {"container", "mcp_servers", "speed"} & set(refused["errors"][2]["message"].split("`"))


@pytest.mark.parametrize("api", TABLES)
async def test_every_wrong_value_of_every_parameter_is_named_in_a_sentence(client: Client, api: str) -> None:
    fields: dict[str, Any] = {each.name: (each.type, ...) for each in TABLES[api] if each.name in OPEN}
    model = cast("type[BaseModel]", create_model("Wrong", **fields))
    wrong = [
        (body[name], field)
        for body, field in Bodies(model).wrong()
        if isinstance(body, dict) and (name := field.partition(".")[0]) in body
    ]
    assert len(wrong) > 10
    for value, field in wrong:
        body = {**said("x"), "model": f"all-{api}", "params": {field.partition(".")[0]: value}}
        check(await client.post("/api/turns", json=body), f"params.{field}")


OPEN = {
    "max_tokens",
    "stop_sequences",
    "tool_choice",
    "temperature",
    "top_p",
    "seed",
    "verbosity",
    "min_p",
    "truncation",
}


@pytest.fixture(scope="module")
def offers() -> list[ProviderModels]:
    everything = [offer([f"all-{api}"], table) for api, table in TABLES.items()]
    small = Model("small", max_output=50, can=frozenset({"tools"}))
    return [
        *everything,
        offer(["gpt-4o", "o3"], parameters_of("openai-chat")),
        offer([CLAUDE], TABLES["anthropic"]),
        offer([small, Model("picky", refuses=frozenset({"stop_sequences"}))], TABLES["anthropic"]),
    ]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def open_server(shared_database_url: str, offers: list[ProviderModels]) -> AsyncIterator[Server]:
    async with serving(shared_database_url, offers=offers, params_allow=ALLOWED) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def client(open_server: Server) -> AsyncIterator[Client]:
    async with Client(open_server.url) as client:
        yield client


# --- inheritance -----------------------------------------------------------------------------------------------------


def asked(offers: list[ProviderModels], model: str) -> Json:
    provider = next(entry.provider for entry in offers if model in {each.id for each in entry.listed()})
    request = cast("ScriptedProvider", provider).requests[-1]
    assert request.model == model
    return dict(request.params)


async def test_a_turn_has_the_chats_parameters_and_its_own_over_them(
    client: Client, offers: list[ProviderModels]
) -> None:
    params = {"temperature": 0.5, "seed": 1, "max_tokens": 9}
    chat = await client.chat(settings={"model": "gpt-4o", "params": params})
    await client.ask(chat, params={"seed": 2, "temperature": None})
    assert asked(offers, "gpt-4o") == {"seed": 2, "max_tokens": 9}
    await client.ask(chat)
    assert asked(offers, "gpt-4o") == params


async def test_a_turn_with_another_model_omits_parameters_unknown_to_it(
    client: Client, offers: list[ProviderModels]
) -> None:
    choice = {"type": "tool", "name": "look"}
    look = {"type": "client", "name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
    params = {"temperature": 0.5, "seed": 1, "max_tokens": 90, "tool_choice": choice}
    chat = await client.chat(settings={"model": "gpt-4o", "params": params, "tools": [look]})
    with structlog.testing.capture_logs() as logs:
        answer = await client.ask(chat, model=CLAUDE, tools=[])
    assert asked(offers, CLAUDE) == {"max_tokens": 90}
    line = next(log for log in logs if log["event"] == "params.left_out")
    assert (line["model"], line["params"]) == (CLAUDE, ["seed", "temperature"])
    await client.ask(chat, model="small", tools=[])
    assert asked(offers, "small") == {"temperature": 0.5, "max_tokens": 50}
    again = await client.json("POST", f"{answer.url}/regenerate", 201, json={"model": "gpt-4o"})
    await client.events(again["stream_url"])
    assert asked(offers, "gpt-4o") == {"max_tokens": 90}


async def test_generated_again_a_turn_has_the_parameters_it_had(client: Client, offers: list[ProviderModels]) -> None:
    answer = await client.ask(await client.chat(), model="gpt-4o", params={"temperature": 0.5, "seed": 1})
    for options, expected in (
        ({}, {"temperature": 0.5, "seed": 1}),
        ({"params": {"seed": None}}, {"temperature": 0.5}),
        ({"model": CLAUDE}, {}),
    ):
        again = await client.json("POST", f"{answer.url}/regenerate", 201, json=options)
        await client.events(again["stream_url"])
        assert asked(offers, cast("str", options.get("model", "gpt-4o"))) == expected


async def test_parameters_no_longer_allowed_by_the_operator_are_left_out(
    shared_database_url: str, offers: list[ProviderModels], client: Client
) -> None:
    chat = await client.chat(settings={"model": CLAUDE, "params": {"service_tier": "auto", "max_tokens": 5}})
    await client.ask(chat)
    assert asked(offers, CLAUDE) == {"service_tier": "auto", "max_tokens": 5}
    async with serving(shared_database_url, offers=offers) as later, Client(later.url) as other:
        await other.ask(chat)
    assert asked(offers, CLAUDE) == {"max_tokens": 5}


async def test_a_fallback_gets_the_parameters_that_it_takes(database_url: str) -> None:
    down = ScriptedProvider(lambda _: [TransientError("overloaded_error", "Overloaded")])
    table = parameters_of("openai-chat")
    first = ProviderModels(down, [Model("gpt-4o", fallbacks=(CLAUDE,))], (), table)
    fallback = ScriptedProvider(answering)
    second = ProviderModels(fallback, [Model(CLAUDE, max_output=50)], (), TABLES["anthropic"])
    async with (
        serving(database_url, offers=[first, second], max_retries=0) as server,
        Client(server.url) as client,
    ):
        with structlog.testing.capture_logs() as logs:
            params = {"temperature": 0.5, "max_tokens": 90, "stop_sequences": ["x"]}
            turn = await client.ask(await client.chat(), model="gpt-4o", params=params)
            ended = await client.json("GET", turn.url)
    assert ended["status"] == "complete"
    assert fallback.requests[0].params == {"max_tokens": 50, "stop_sequences": ["x"]}
    assert next(log["params"] for log in logs if log["event"] == "params.left_out") == ["temperature"]


# --- tools of the provider -------------------------------------------------------------------------------------------


async def test_an_operator_allows_types_of_the_providers_own_tools(database_url: str) -> None:
    search, files = ({"type": "provider", "definition": {"type": type}} for type in ("web_search", "file_search"))
    provider = ScriptedProvider(answering)
    known = ProviderModels(provider, ["m"], (), TABLES["openai-responses"])
    async with (
        serving(database_url, offers=[known], provider_tools_allow="web_search, file_search") as server,
        Client(server.url) as client,
    ):
        chat = await client.chat(settings={"model": "m"})
        await client.ask(chat, tools=[search, files])
    async with (
        serving(database_url, offers=[known], provider_tools_allow="web_search, code_interpreter") as server,
        Client(server.url) as client,
    ):
        await client.ask(chat)
        assert provider.requests[-1].provider_tools == ('{"type":"web_search"}',)
        body = {**said("x"), "model": "m", "tools": [search, files]}
        refused = await client.post(f"{chat}/turns", json=body)
        check(refused, "tools.1.definition.type")
        assert "web_search" not in refused.json()["detail"]


# --- the list of models ----------------------------------------------------------------------------------------------


async def test_the_list_of_models_has_the_parameters_of_each(client: Client) -> None:
    listed = {model["id"]: model["params"] for model in (await client.json("GET", "/api/models"))["models"]}
    by_name = {param["name"]: param for param in listed["gpt-4o"]}
    assert by_name["temperature"] == {
        "name": "temperature",
        "description": "randomness of the answer",
        "values": {"type": "number", "minimum": 0, "maximum": 2},
    }
    assert by_name["service_tier"]["values"]["enum"][0] == "auto"
    assert not {"thinking", "user", "provider"} & by_name.keys()
    claude = {param["name"]: param["values"] for param in listed[CLAUDE]}
    assert not {"temperature", "top_p", "speed", "container"} & claude.keys()
    assert "betas" in claude
    assert claude["output_config"]["properties"]["effort"]["enum"] == ["low", "medium", "high", "xhigh", "max"]
    small = {param["name"]: param["values"] for param in listed["small"]}
    assert small["max_tokens"] == {"type": "integer", "minimum": 1, "maximum": 50}
    assert {param["name"] for param in listed["plain"]} == {
        "max_tokens",
        "stop_sequences",
        "tool_choice",
        "thinking",
        "output_config",
    }


async def test_the_document_has_a_schema_for_every_parameter(client: Client) -> None:
    document = (await client.get("/openapi.json")).json()
    described = document["components"]["schemas"]["Params"]
    schemas = {name: schema["anyOf"][0] for name, schema in described["properties"].items()}
    assert schemas.keys() == {each.name for table in TABLES.values() for each in table}
    assert described["additionalProperties"] is not False
    assert schemas["temperature"]["maximum"] == 2
    assert {
        name for name, schema in schemas.items() if "operator must allow" in schema["description"]
    } == guarded_names()
