"""The tables of model parameters: accepted values, models that refuse a parameter, and parameters that an operator
allows.
"""

import typing
from typing import Any

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming as AnthropicRequest
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatRequest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming as ResponsesRequest
from pydantic import ValidationError

from tests.support.model_apis import TABLES, guarded_names, parameters_of, schemas_by_name
from turnstream.extensions.demo.provider import DemoProvider
from turnstream.extensions.openai.parameters import CHAT
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.llm.parameters import AllowedParams, Parameter

Json = dict[str, Any]
EVERY = [(api, parameter) for api, table in TABLES.items() for parameter in table]
# Parameters whose name in a turn differs from their name in the provider's API.
TRANSLATED = {"max_tokens", "output_config", "stop_sequences", "thinking", "reasoning_effort", "verbosity"}
NOT_OPENAIS = {"chat_template_kwargs", "min_p", "provider", "reasoning", "repetition_penalty", "top_k"}


def named(api: str, name: str) -> Parameter:
    return next(parameter for parameter in TABLES[api] if parameter.name == name)


@pytest.mark.parametrize(
    ("api", "request_type"),
    [("anthropic", AnthropicRequest), ("openai-chat", ChatRequest), ("openai-responses", ResponsesRequest)],
)
def test_the_sdk_of_the_vendor_knows_every_parameter(api: str, request_type: Any) -> None:
    sent = {parameter.name for parameter in TABLES[api] if not parameter.is_refused_by("claude-opus-5-5")}
    assert sent - typing.get_type_hints(request_type).keys() <= TRANSLATED | NOT_OPENAIS


@pytest.mark.parametrize("api", TABLES)
def test_a_name_is_once_in_a_table(api: str) -> None:
    names = [parameter.name for parameter in TABLES[api]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("api", "parameter"), EVERY, ids=lambda each: getattr(each, "name", each))
def test_a_parameter_has_a_schema_of_its_own_and_a_description(api: str, parameter: Parameter) -> None:
    schema = parameter.schema()
    assert {"type", "enum", "anyOf"} & schema.keys()
    assert not {"$defs", "title"} & schema.keys()
    assert parameter.description
    assert bool(parameter.why) == (parameter.refused_by is not None)


def test_a_name_means_the_same_in_every_table() -> None:
    schemas: dict[str, Json] = {}
    for _, parameter in EVERY:
        schema = {name: value for name, value in parameter.schema().items() if name != "enum"}
        assert schemas.setdefault(parameter.name, schema) == schema, parameter.name
    tiers = schemas_by_name()["service_tier"]["enum"]
    assert {"auto", "standard_only", "flex"} <= set(tiers)
    assert schemas_by_name()["store"]["description"].endswith(" (the operator must allow it): openai-responses")
    assert schemas_by_name()["max_tokens"]["description"].endswith(": anthropic, gemini, openai-chat, openai-responses")


@pytest.mark.parametrize(
    ("name", "value", "ok"),
    [
        ("temperature", 0, True),
        ("temperature", 2.0, True),
        ("temperature", 2.1, False),
        ("temperature", "1", False),
        ("temperature", True, False),
        ("max_tokens", 0, False),
        ("seed", 1.5, False),
        ("logit_bias", {"50256": -100}, True),
        ("logit_bias", {"50256": -101}, False),
        ("reasoning_effort", "xhigh", True),
        ("reasoning_effort", "some", False),
        ("reasoning", {"effort": "low", "max_tokens": 5}, True),
        ("reasoning", {"mode": "pro"}, False),
        ("thinking", {"type": "adaptive", "of_a_later_version": 1}, True),
        ("thinking", {"type": ["adaptive"]}, False),
        ("thinking", {}, False),
        ("tool_choice", {"type": "tool", "name": "look"}, True),
        ("tool_choice", {"type": "tool"}, False),
        ("tool_choice", {"type": "auto", "name": "look"}, False),
    ],
)
def test_a_value_is_checked_by_type_and_range(name: str, value: object, ok: bool) -> None:
    assert named("openai-chat", name).accepts(value) == ok


@pytest.mark.parametrize(
    ("name", "value", "ok"),
    [
        ("container", "container_1", True),
        ("container", {"id": "container_1", "skills": []}, True),
        ("container", 3, False),
        ("context_management", {"edits": [{"type": "clear_tool_uses_20250919"}]}, True),
        ("context_management", {"edits": [{}]}, False),
        ("service_tier", "flex", False),
        ("thinking", {"type": "enabled", "budget_tokens": 1024}, True),
        ("thinking", {"type": "enabled", "budget_tokens": 1023}, False),
        ("thinking", {"type": "enabled"}, False),
    ],
)
def test_a_value_of_anthropics_is_checked_by_type(name: str, value: object, ok: bool) -> None:
    assert named("anthropic", name).accepts(value) == ok


def test_a_value_is_sent_as_it_was_given_without_members_that_are_null() -> None:
    choice = {"type": "any", "name": None, "disable_parallel_tool_use": True}
    assert named("openai-chat", "tool_choice").validated(choice) == {"type": "any", "disable_parallel_tool_use": True}
    thinking = {"type": "adaptive", "display": None, "other": {"a": None}, "more": None}
    assert named("anthropic", "thinking").validated(thinking) == {
        "type": "adaptive",
        "other": {"a": None},
        "more": None,
    }
    assert named("openai-chat", "logit_bias").validated({"1": 5}) == {"1": 5}
    assert named("openai-chat", "temperature").validated(0) == 0
    with pytest.raises(ValidationError):
        named("openai-chat", "temperature").validated(None)


# --- servers and models ----------------------------------------------------------------------------------------------


def names_of(api: str, quirks: str) -> set[str]:
    return {parameter.name for parameter in parameters_of(api, quirks)}


def test_a_server_takes_the_parameters_of_its_quirks() -> None:
    local = names_of("openai-chat", "compatible")
    sampling = {"temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"}
    assert sampling | {"repetition_penalty", "chat_template_kwargs"} <= local
    assert not {"thinking", "reasoning", "provider"} & local
    assert {"reasoning", "provider", "thinking"} <= names_of("openai-chat", "openrouter")
    assert names_of("openai-chat", "openai") & NOT_OPENAIS == set()
    assert not {"top_k", "user", "verbosity"} & names_of("openai-chat", "mistral")
    assert "thinking" in names_of("openai-chat", "deepseek")
    assert {"reasoning", "reasoning_effort", "thinking", "store"} <= names_of("openai-responses", "openai")
    assert not {"reasoning", "reasoning_effort", "thinking"} & names_of("openai-responses", "compatible")
    assert "stop_sequences" not in names_of("openai-responses", "openai")


def test_a_server_without_an_effort_takes_a_format_alone() -> None:
    by_quirks = {
        quirks: next(each for each in parameters_of("openai-chat", quirks) if each.name == "output_config")
        for quirks in ("openai", "compatible", "deepseek")
    }
    assert [each.accepts({"effort": "low"}) for each in by_quirks.values()] == [True, False, False]
    assert [each.accepts({"format": {}}) for each in by_quirks.values()] == [True, True, True]


OFFERS = [
    ProviderModels(
        DemoProvider(),
        [Model("o3", fallbacks=("small",)), Model("mine", refuses=frozenset({"seed"})), Model("alias", "gpt-4o")],
        ["gpt-"],
        parameters_of("openai-chat"),
    ),
    ProviderModels(DemoProvider(), [Model("small", max_output=50, can=frozenset({"tools"}))]),
    ProviderModels(DemoProvider(), ["claude-opus-5-5"], parameters=TABLES["anthropic"]),
]
MODELS = Models(OFFERS)


@pytest.mark.parametrize(
    ("model", "refused"),
    [
        ("o3", {"temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"}),
        ("gpt-5-mini", {"temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"}),
        ("gpt-5.1", set()),
        ("gpt-5-chat-latest", set()),
        ("gpt-4o", {"thinking", "reasoning_effort"}),
        ("alias", {"thinking", "reasoning_effort"}),
        ("mine", {"seed"}),
    ],
)
def test_a_model_refuses_parameters_that_its_api_accepts_for_others(model: str, refused: set[str]) -> None:
    taken = {parameter.name for parameter in MODELS.parameters(model)}
    assert {parameter.name for parameter in parameters_of("openai-chat")} - taken == refused
    assert all(MODELS.refusal(model, name) for name in refused)
    assert MODELS.refusal(model, "max_tokens") is None


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p"])
def test_sampling_is_refused_by_the_claude_models_that_have_none(name: str) -> None:
    unsampled = [
        "claude-fable-5",
        "claude-mythos-5-2",
        "claude-mythos-preview",
        "claude-opus-4-7",
        "claude-opus-4-8",
        "claude-opus-5",
        "claude-opus-5-5",
        "claude-sonnet-5",
        "claude-haiku-5-5",
        "anthropic/claude-opus-4.7",
        "us.anthropic.claude-opus-4-8-v1:0",
        "claude-sonnet-5@20260701",
    ]
    sampled = [
        "claude-opus-4-6",
        "claude-sonnet-4-6",
        "claude-opus-4-5-20251101",
        "claude-sonnet-4-5",
        "claude-haiku-4-5@20251001",
        "claude-sonnet-4-20250514",
        "claude-3-7-sonnet-20250219",
        "claude-3-5-haiku-latest",
        "kimi-k2.5",
        "MiniMax-M2",
        "glm-5",
    ]
    parameter = named("anthropic", name)
    assert [model for model in (*unsampled, *sampled) if parameter.is_refused_by(model)] == unsampled
    assert MODELS.refusal("claude-opus-5-5", name) == "it is a Claude model without sampling parameters"


def test_parameters_accepted_by_another_model_are_kept() -> None:
    params = {
        "temperature": 0.5,
        "max_tokens": 100,
        "thinking": {"type": "adaptive"},
        "stop_sequences": ["x"],
        "output_config": {"format": {}},
    }
    assert MODELS.fitting("small", params) == {"max_tokens": 50, "stop_sequences": ["x"]}
    assert MODELS.fitting("gpt-4o", {**params, "seed": "no"}) == {
        name: params[name] for name in ("temperature", "max_tokens", "stop_sequences", "output_config")
    }
    assert MODELS.fitting("small", {"thinking": {"type": "disabled"}}) == {"thinking": {"type": "disabled"}}


@pytest.mark.parametrize(
    ("name", "value", "member"),
    [
        ("max_tokens", 51, "max_tokens"),
        ("max_tokens", 50, None),
        ("thinking", {"type": "adaptive"}, "thinking"),
        ("thinking", {"type": "disabled"}, None),
        ("output_config", {"effort": "low", "format": {}}, "output_config.format"),
        ("output_config", {"effort": "low"}, None),
    ],
)
def test_a_model_refuses_unsupported_values(name: str, value: object, member: str | None) -> None:
    objection = MODELS.check("small").objection(name, value)
    assert (objection and objection[0]) == member


def test_of_a_model_that_is_gone_nothing_is_known() -> None:
    assert list(MODELS.parameters("gone")) == []
    assert MODELS.refusal("gone", "seed") is None
    assert MODELS.fitting("gone", {"seed": 1}) == {"seed": 1}


# --- the operator ----------------------------------------------------------------------------------------------------


def test_an_operator_allows_names_or_single_values() -> None:
    allowed = AllowedParams.of("store=false, betas=a,betas = b , service_tier, service_tier=flex,")
    betas, tier = named("anthropic", "betas"), named("openai-chat", "service_tier")
    store, container = named("openai-responses", "store"), named("anthropic", "container")
    assert allowed.allows(betas, ["a", "b"])
    assert not allowed.allows(betas, ["a", "c"])
    assert allowed.allows(tier, "priority")
    assert allowed.allows(named("anthropic", "max_tokens"), 5)
    assert (allowed.allows(store, False), allowed.allows(store, True)) == (True, False)
    assert not allowed.allows(container, {"id": "c"})
    assert [allowed.shows(each) for each in (betas, container, named("anthropic", "max_tokens"))] == [True, False, True]


def test_an_object_is_allowed_as_a_whole_only() -> None:
    servers = named("anthropic", "mcp_servers")
    assert not AllowedParams.of("mcp_servers=x").allows(servers, [{"url": "https://x.org"}])
    assert AllowedParams.of("mcp_servers").allows(servers, [{"url": "https://x.org"}])


def test_nothing_that_reaches_the_account_is_allowed_unasked() -> None:
    reaching = {"betas", "container", "mcp_servers", "metadata", "service_tier", "speed", "store", "user"}
    assert reaching <= guarded_names()
    assert not any(AllowedParams().shows(parameter) for _, parameter in EVERY if parameter.guarded)
    assert not {parameter.name for parameter in CHAT if not parameter.guarded} & guarded_names()
