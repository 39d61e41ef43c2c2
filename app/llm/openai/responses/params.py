"""A turn's model parameters, which are said in Anthropic's words, as the Responses API's. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from app.llm.openai.params import effort, mapping, output_schema, tool_choice
from app.llm.openai.quirks import Quirks
from app.llm.provider import ModelRequest

# Those that are called the same, or that only OpenAI and its imitators know.
PASSED_ON = frozenset(
    {
        "include",
        "max_tool_calls",
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "provider",
        "safety_identifier",
        "service_tier",
        "store",
        "temperature",
        "top_p",
        "truncation",
        "user",
    }
)
_THOUGHTS = "reasoning.encrypted_content"
# Models that do not think refuse to be asked for what they have thought.
_THOUGHTLESS = re.compile(r"(^|[/.:])(chatgpt|gpt-3|gpt-4)")


def sent_params(request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
    """Nothing is stored at the provider, so what it has thought must come to us, to go back with the next request."""
    given = {name: value for name, value in request.params.items() if value is not None}
    params: dict[str, Any] = {"store": False}
    if "max_tokens" in given:
        params["max_output_tokens"] = given["max_tokens"]
    if quirks.thinking is not None and (reasoning := _reasoning(given)):
        params["reasoning"] = reasoning
    if text := _text(given):
        params["text"] = text
    if request.tools or request.provider_tools:
        params |= tool_choice(given.get("tool_choice"), request.may_use_tools, _function)
    params |= {name: value for name, value in given.items() if name in PASSED_ON}
    return params | _include(request.model, given)


def _include(model: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What has been thought, unless it is stored, and what the turn asks for."""
    asked = given.get("include")
    thoughts = [] if _THOUGHTLESS.search(model) or (asked is not None and given.get("store")) else [_THOUGHTS]
    include = [*thoughts, *(each for each in asked or () if each not in thoughts)]
    return {"include": include} if include or asked is not None else {}


def _reasoning(given: Mapping[str, Any]) -> dict[str, Any]:
    """A summary is not to be had by everybody, so it is asked for only where the turn wants to see one."""
    how = given.get("reasoning_effort") or effort(given)
    asked = {"effort": how} if how else {}
    if mapping(given.get("thinking")).get("display") == "summarized":
        asked["summary"] = "auto"
    return {**asked, **mapping(given.get("reasoning"))}


def _text(given: Mapping[str, Any]) -> dict[str, Any]:
    """How the answer is to be written: in which form, and at what length."""
    schema = output_schema(given)
    form = {"format": {"type": "json_schema", **schema}} if schema else {}
    return form | ({"verbosity": given["verbosity"]} if "verbosity" in given else {})


def _function(name: object) -> Mapping[str, Any]:
    return {"type": "function", "name": name}
