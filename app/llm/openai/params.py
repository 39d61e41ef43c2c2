"""A turn's model parameters, which are said in Anthropic's words, as OpenAI's, and the request around them. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from app.domain.turns import ToolSpec
from app.kit.strict_schema import is_strict
from app.llm.openai.quirks import Quirks
from app.llm.provider import ModelRequest

LONGEST_NAME = 64  # of a tool
# Those that are called the same, or that only OpenAI and its imitators know.
PASSED_ON = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "metadata",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt_cache_key",
        "provider",
        "reasoning",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "temperature",
        "top_p",
        "user",
        "verbosity",
    }
)
_EFFORTS = {"max": "xhigh"}
_BUDGETS = ((4_096, "low"), (16_384, "medium"))  # up to so many tokens of thinking
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def request_bytes(
    request: ModelRequest,
    conversation: Mapping[str, Any],
    tool: Callable[[ToolSpec], Mapping[str, Any]],
    params: Mapping[str, Any],
    quirks: Quirks,
) -> bytes:
    """The body of a request to either API. `tool` is how the API is told of one."""
    tools = [*map(tool, request.tools), *(Raw(definition.encode()) for definition in request.provider_tools)]
    body = {"model": request.model, **conversation, **({"tools": tools} if tools else {}), **params, **quirks.extra}
    return msgspec.json.encode({name: value for name, value in body.items() if name not in quirks.unsupported})


def sent_params(request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
    given = {name: value for name, value in request.params.items() if value is not None}
    params: dict[str, Any] = {}
    if "max_tokens" in given:
        params[quirks.max_tokens] = given["max_tokens"]
    if given.get("stop_sequences"):
        params["stop"] = given["stop_sequences"]
    params |= _thinking(given, quirks) | _output(given)
    if request.tools or request.provider_tools:
        params |= tool_choice(given.get("tool_choice"), request.may_use_tools, _function)
    return params | {name: value for name, value in given.items() if name in PASSED_ON}


def tool_choice(choice: object, may_use_tools: bool, named: Callable[[object], Mapping[str, Any]]) -> dict[str, Any]:
    """`named` is how the API is told of one tool by its name."""
    if not may_use_tools:
        return {"tool_choice": "none"}
    if not isinstance(choice, Mapping):
        return {"tool_choice": choice} if isinstance(choice, str) else {}
    type = choice.get("type", "")
    said = named(choice.get("name")) if type == "tool" else _CHOICES.get(type)
    one_by_one = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return {"tool_choice": choice if said is None else said} | one_by_one


def _function(name: object) -> Mapping[str, Any]:
    return {"type": "function", "function": {"name": name}}


def effort(given: Mapping[str, Any]) -> str | None:
    """How hard to think, in OpenAI's words; None leaves it to the model."""
    asked = mapping(given.get("output_config")).get("effort")
    thinking = mapping(given.get("thinking"))
    if thinking.get("type") == "disabled":
        return "none"
    if isinstance(asked, str):
        return _EFFORTS.get(asked, asked)
    if isinstance(budget := thinking.get("budget_tokens"), int):
        return next((name for most, name in _BUDGETS if budget <= most), "high")
    return None


def _thinking(given: Mapping[str, Any], quirks: Quirks) -> dict[str, Any]:
    how = effort(given)
    match quirks.thinking:
        case "reasoning_effort" if how:
            return {"reasoning_effort": how}
        case "reasoning" if how:
            return {"reasoning": {"enabled": False} if how == "none" else {"effort": how}}
        case "thinking" if kind := mapping(given.get("thinking")).get("type"):
            return {"thinking": {"type": "disabled" if kind == "disabled" else "enabled"}}
        case _:
            return {}


def _output(given: Mapping[str, Any]) -> dict[str, Any]:
    schema = output_schema(given)
    return {"response_format": {"type": "json_schema", "json_schema": schema}} if schema else {}


def output_schema(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The name and JSON Schema of what the model is to answer, where that is asked for."""
    format = mapping(mapping(given.get("output_config")).get("format"))
    if format.get("type") != "json_schema":
        return None
    schema: dict[str, Any] = {"name": format.get("name") or "output", "schema": format.get("schema")}
    return {**schema, "strict": True} if is_strict(format.get("schema")) else schema


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
