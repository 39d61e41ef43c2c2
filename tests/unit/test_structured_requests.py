"""Structured turns: the provider enforces the schema, or the model calls a tool for the output."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from turnstream.api.resolve import Defaults, Resolver
from turnstream.api.schemas.requests import OutputIn, TurnOptions
from turnstream.domain.errors import RequestRefused
from turnstream.domain.turns import Limits, ToolSpec, TurnRequest
from turnstream.extensions.demo.provider import DemoProvider
from turnstream.extensions.openai.parameters import CHAT
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.tools.outputs import Outputs
from turnstream.tools.tool import ToolContext
from turnstream.tools.toolset import Toolset

SCHEMA = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
STRICT = {**SCHEMA, "additionalProperties": False}
CAN = frozenset({"tools", "structured_output"})
MODELS = Models(
    [
        ProviderModels(
            DemoProvider(),
            [
                Model("held", can=CAN),
                Model("free", can=frozenset({"tools"})),
                Model("silent", can=frozenset({"structured_output"})),
                Model("unknown"),
                Model("falls well", can=CAN, fallbacks=("held",)),
                Model("falls badly", can=CAN, fallbacks=("held", "unknown")),
            ],
            parameters=CHAT,
        )
    ]
)


async def critic(draft: Any, context: ToolContext) -> str:
    return f"{draft} {context}"


TOOLSET = Toolset([], outputs=Outputs(handlers={"critic": critic}))
RESOLVER = Resolver(MODELS, TOOLSET, Defaults("held", None, Limits()))


def asked(
    model: str = "held", schema: dict[str, Any] = STRICT, handler: str | None = None, **frozen: Any
) -> TurnRequest:
    output = OutputIn(schema=schema, handler=handler)
    before = TurnRequest(model, limits=Limits(recovery="continue"), **frozen)
    return RESOLVER.again(TurnOptions(output=output), before)


def names(request: TurnRequest) -> list[str]:
    return [spec.name for spec in request.tools]


@pytest.mark.parametrize("model", ["held", "silent", "falls well"])
def test_a_model_that_is_known_to_can_is_held_to_the_schema(model: str) -> None:
    request = asked(model)
    assert request.output is not None
    assert request.output.native
    assert names(request) == []
    assert request.limits.recovery == "retry"


@pytest.mark.parametrize(
    "how",
    [
        {"model": "free"},
        {"model": "unknown"},
        {"model": "falls badly"},
        {"schema": SCHEMA},
        {"handler": "critic"},
        {"provider_tools": ('{"type":"web_search_20250305","name":"web_search"}',)},
        {"params": {"output_config": {"format": {"type": "json_schema", "schema": STRICT}}}},
        {"params": {"response_format": {"type": "json_object"}}},
    ],
)
def test_any_other_turn_has_the_tool(how: dict[str, Any]) -> None:
    request = asked(**how)
    assert request.output is not None
    assert not request.output.native
    assert names(request)[0] == "output"
    assert request.limits.recovery == "continue"


def test_another_model_may_do_it_in_the_other_way() -> None:
    first = asked("held")
    there = RESOLVER.again(TurnOptions(model="free"), first)
    back = RESOLVER.again(TurnOptions(model="held"), there)
    assert there.output is not None
    assert (there.output.native, names(there)) == (False, ["output"])
    assert back.output == first.output
    assert names(back) == []


@pytest.mark.parametrize(
    ("output", "tools", "field"),
    [
        ({"name": "search"}, ("search",), "output.name"),
        ({}, ("output",), "output.name"),
        ({"name": "web"}, (), "output.name"),
        ({"handler": "critic", "submit_name": "search"}, ("search",), "output.submit_name"),
        ({"handler": "critic", "name": "give", "submit_name": "give"}, (), "output.submit_name"),
    ],
)
def test_a_name_that_another_tool_has_is_refused(output: dict[str, Any], tools: Sequence[str], field: str) -> None:
    specs = tuple(ToolSpec(name, "", "{}", client=True) for name in tools)
    before = TurnRequest("free", tools=specs, provider_tools=('{"type":"web_search_20250305","name":"web"}',))
    with pytest.raises(RequestRefused, match=f"`{field}` must be another name: this turn has another tool") as refused:
        RESOLVER.again(TurnOptions(output=OutputIn(schema=SCHEMA, **output)), before)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("schema", "native"),
    [
        ({"type": "array", "items": {"type": "string"}}, True),
        ({"type": "string", "enum": ["yes", "no"]}, True),
        ({"anyOf": [STRICT, {"type": "null"}]}, True),
        ({"type": "number", "minimum": 1}, False),
    ],
)
def test_a_schema_that_is_not_of_an_object_is_wrapped_with_a_tool_and_without(
    schema: dict[str, Any], native: bool
) -> None:
    held, free = asked("held", schema), asked("free", schema)
    assert held.output is not None
    assert (held.output.wrapped, held.output.native) == (True, native)
    (spec,) = free.tools
    assert json.loads(spec.input_schema)["properties"] == {"value": schema}


@pytest.mark.parametrize("name", [[], {}, ["output"], 5, None])
def test_a_tool_of_the_provider_may_have_any_json_as_its_name(name: Any) -> None:
    search = json.dumps({"type": "web_search_20250305", "name": name})
    assert "output" in names(asked("free", provider_tools=(search,)))
