"""Converts a turn's model parameters from Anthropic's names to OpenAI's: the part that both APIs share. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from turnstream.extensions.openai.quirks import Quirks
from turnstream.kit.strict_schema import is_strict
from turnstream.libraries.providers.translation import split_definitions
from turnstream.llm.provider import ModelRequest

LONGEST_NAME = 64  # characters of a tool's name
_EFFORTS = {"max": "xhigh"}
_BUDGETS = ((4_096, "low"), (16_384, "medium"))  # the effort for a budget of up to so many tokens of thinking
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def request_bytes(
    request: ModelRequest,
    conversation: Mapping[str, Any],
    tool: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    params: Mapping[str, Any],
    quirks: Quirks,
) -> bytes:
    """Returns the body of a request to either API. `tool` wraps the description of a tool in the API's form."""
    descriptions = (
        {"name": spec.name, "description": spec.description, "parameters": Raw(spec.input_schema.encode())}
        for spec in request.tools
    )
    added, provider_tools = split_definitions(request)
    tools: list[Any] = [
        {**tool(description), **added.get(str(description["name"]), {})} for description in descriptions
    ]
    tools += [Raw(definition.encode()) for definition in provider_tools]
    body = {"model": request.model, **conversation, **({"tools": tools} if tools else {}), **params, **quirks.extra}
    return msgspec.json.encode({name: value for name, value in body.items() if name not in quirks.unsupported})


def names_of_tools(request: ModelRequest) -> frozenset[str]:
    """Returns the names of all tools in the request, including tools that only the provider describes."""
    described = [msgspec.json.decode(definition) for definition in request.provider_tools]
    return frozenset([*(spec.name for spec in request.tools), *(str(each.get("name")) for each in described)])


def tool_choice(
    params: Mapping[str, Any], request: ModelRequest, named: Callable[[object], Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the members that limit the choice of tools. `named` returns the value that forces the use of one tool, in
    the API's form.
    """
    if not (request.tools or request.provider_tools):
        return {}
    if not request.may_use_tools:
        return {"tool_choice": "none"}
    choice = params.get("tool_choice")
    if not isinstance(choice, Mapping):
        return {"tool_choice": choice} if isinstance(choice, str) else {}
    type = choice.get("type", "")
    known = named(choice.get("name")) if type == "tool" else _CHOICES.get(type)
    one_by_one = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return {"tool_choice": choice if known is None else known} | one_by_one


def reasoning_effort(params: Mapping[str, Any]) -> str | None:
    """Returns the reasoning effort in OpenAI's words, or None if the model may choose the effort."""
    effort = mapping(params.get("output_config")).get("effort")
    thinking = mapping(params.get("thinking"))
    if thinking.get("type") == "disabled":
        return "none"
    if isinstance(effort, str):
        return _EFFORTS.get(effort, effort)
    if isinstance(budget := thinking.get("budget_tokens"), int):
        return next((name for most, name in _BUDGETS if budget <= most), "high")
    return None


def output_schema(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the output's name and JSON Schema, if the turn has an output."""
    format = mapping(mapping(params.get("output_config")).get("format"))
    if format.get("type") != "json_schema":
        return None
    schema: dict[str, Any] = {"name": format.get("name") or "output", "schema": format.get("schema")}
    return {**schema, "strict": True} if is_strict(format.get("schema")) else schema


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
