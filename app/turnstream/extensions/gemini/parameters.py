"""The parameters that turns may have for the Gemini API, and their translation to members of a request. Pure."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from turnstream.extensions.gemini.schema import subset_of
from turnstream.llm.parameters import (
    MAX_TOKENS,
    OUTPUT_CONFIG,
    STOP_SEQUENCES,
    TEMPERATURE,
    THINKING,
    TOOL_CHOICE,
    TOP_K,
    TOP_P,
    JsonObject,
    Parameter,
)
from turnstream.llm.provider import ModelRequest

# Models before Gemini 3 have a thinking budget instead of a thinking level, and accept calls without a signature.
_OLDER = re.compile(r"(^|/)gemini-(1|2)[.-]")
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_LEVELS = {"low": "LOW", "medium": "MEDIUM", "high": "HIGH", "xhigh": "HIGH", "max": "HIGH"}
_BUDGETS = {"low": 1_024, "medium": 8_192, "high": 24_576, "xhigh": 24_576, "max": 24_576}  # tokens
_MODES = {"auto": "AUTO", "any": "ANY", "tool": "ANY", "none": "NONE"}
_CONFIG = {
    "max_tokens": "maxOutputTokens",
    "stop_sequences": "stopSequences",
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
_REQUEST = {"cached_content": "cachedContent", "safety_settings": "safetySettings"}

PARAMETERS = (
    MAX_TOKENS,
    STOP_SEQUENCES,
    TOOL_CHOICE,
    THINKING,
    OUTPUT_CONFIG,
    TEMPERATURE,
    TOP_P,
    TOP_K,
    Parameter("seed", int, "number that makes sampling repeatable"),
    Parameter("presence_penalty", _Penalty, "avoidance of what was mentioned"),
    Parameter("frequency_penalty", _Penalty, "avoidance of what was repeated"),
    Parameter("cached_content", str, "cache of the provider that holds the system prompt and the tools", guarded=True),
    Parameter("safety_settings", list[JsonObject], "thresholds at which the provider blocks content", guarded=True),
)
# Members of a request that the adapter itself writes: the operator's own parameters must have other names.
OWN_MEMBERS = frozenset(
    {
        "cachedContent",
        "contents",
        "generationConfig",
        "model",
        "safetySettings",
        "systemInstruction",
        "toolConfig",
        "tools",
    }
)


def is_older(model: str) -> bool:
    return _OLDER.search(model) is not None


def request_members(request: ModelRequest, further: frozenset[str]) -> dict[str, Any]:
    """Returns the members of the request that come from parameters. Parameters in `further` already have the provider's
    names.
    """
    given = {name: value for name, value in request.params.items() if value is not None}
    members: dict[str, Any] = {member: given[name] for name, member in _REQUEST.items() if name in given}
    config = {member: given[name] for name, member in _CONFIG.items() if name in given}
    if thinking := _thinking(given, older=is_older(request.model)):
        config["thinkingConfig"] = thinking
    format = _mapping(_mapping(given.get("output_config")).get("format"))
    if format.get("type") == "json_schema":
        config |= {"responseMimeType": "application/json", "responseJsonSchema": subset_of(format.get("schema"))}
    if config:
        members["generationConfig"] = config
    return members | {name: value for name, value in given.items() if name in further}


def tool_config(request: ModelRequest, *, functions: bool, provider_tools: bool) -> dict[str, Any]:
    """Returns the members of the request that limit the choice of tools."""
    config: dict[str, Any] = {}
    choice = _mapping(request.params.get("tool_choice"))
    mode = _MODES.get(str(choice.get("type"))) if request.may_use_tools else "NONE"
    if functions and mode is not None:
        calling: dict[str, Any] = {"mode": mode}
        if mode == "ANY" and choice.get("name"):
            calling["allowedFunctionNames"] = [choice["name"]]
        config["functionCallingConfig"] = calling
    if functions and provider_tools and not is_older(request.model):
        # otherwise the API refuses a request with both types of tools
        config["includeServerSideToolInvocations"] = True
    return {"toolConfig": config} if config else {}


def _thinking(given: Mapping[str, Any], *, older: bool) -> dict[str, Any]:
    thinking = _mapping(given.get("thinking"))
    effort = _mapping(given.get("output_config")).get("effort")
    config: dict[str, Any] = {}
    if thinking.get("type") == "disabled":
        # Newer models always think.
        config = {"thinkingBudget": 0} if older else {"thinkingLevel": "LOW"}
    elif effort in _LEVELS:
        config = {"thinkingBudget": _BUDGETS[effort]} if older else {"thinkingLevel": _LEVELS[effort]}
    elif "budget_tokens" in thinking:
        config = {"thinkingBudget": thinking["budget_tokens"]}
    if thinking and thinking.get("type") != "disabled" and thinking.get("display") != "omitted":
        config["includeThoughts"] = True
    return config


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
