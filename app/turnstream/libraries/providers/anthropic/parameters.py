"""The parameters of the Anthropic Messages API that turns can set."""

import re
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

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
    Texts,
    Thinking,
)

# Claude models from version 4.7 on. A gateway or a cloud may put a prefix before the name.
_UNSAMPLED = re.compile(r"claude-(fable|mythos|[a-z]+-(4[-.][7-9]|[5-9])(?!\d))")
_LEAST_BUDGET = 1_024  # tokens
_WHY = "it is a Claude model without sampling parameters"


def _with_types(edits: list[JsonObject]) -> list[JsonObject]:
    if not all(isinstance(edit.get("type"), str) for edit in edits):
        raise ValueError("must hold objects with a `type`, such as clear_tool_uses_20250919")
    return edits


class ContextManagement(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    edits: Annotated[list[JsonObject], AfterValidator(_with_types), Field(max_length=10)]


def _with_budget(thinking: Thinking) -> Thinking:
    if thinking.type == "enabled" and (thinking.budget_tokens or 0) < _LEAST_BUDGET:
        raise ValueError(f"must have `budget_tokens` of at least {_LEAST_BUDGET:,} with the type `enabled`")
    return thinking


def _id_or_object(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise ValueError("must be an id or an object")
    return value


_IdOrObject = Annotated[
    Any, AfterValidator(_id_or_object), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
]

PARAMETERS = (
    MAX_TOKENS,
    STOP_SEQUENCES,
    TOOL_CHOICE,
    replace(THINKING, type=Annotated[Thinking, AfterValidator(_with_budget)]),
    OUTPUT_CONFIG,
    *(replace(parameter, refused_by=_UNSAMPLED, why=_WHY) for parameter in (TEMPERATURE, TOP_K, TOP_P)),
    Parameter("context_management", ContextManagement, "how the provider shortens a long conversation"),
    Parameter("betas", Texts, "names of the provider's betas", guarded=True),
    Parameter("container", _IdOrObject, "container of the provider's code execution", guarded=True),
    Parameter("diagnostics", JsonObject, "report of the provider on its cache", guarded=True),
    Parameter("fallbacks", list[JsonObject], "models that the provider tries after a refusal", guarded=True),
    Parameter("inference_geo", str, "region in which the model runs", guarded=True),
    Parameter("mcp_servers", list[JsonObject], "MCP servers that the provider connects to", guarded=True),
    Parameter(
        "metadata", dict[str, str], "notes that the provider keeps with the request, such as `user_id`", guarded=True
    ),
    Parameter("service_tier", Literal["auto", "standard_only"], "capacity that is used", guarded=True),
    Parameter("speed", Literal["standard", "fast"], "speed of the answer", guarded=True),
)
SAMPLING = frozenset(parameter.name for parameter in (TEMPERATURE, TOP_K, TOP_P))
# Each member of the request has the name of its parameter; the betas are sent in a header.
MEMBERS = frozenset(parameter.name for parameter in PARAMETERS) - {"betas"}
# Members of a request that no parameter sets.
OWN_MEMBERS = frozenset({"cache_control", "messages", "model", "stream", "system", "tools"})
