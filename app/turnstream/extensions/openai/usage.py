"""Converts the usage that OpenAI's two APIs, or compatible servers, report to the usage of turns. Pure.

A turn's `input_tokens` exclude tokens read from or written to a cache; OpenAI's count includes them.
"""

from collections.abc import Mapping
from typing import Any

_DETAILS = {
    "input": ("prompt_tokens_details", "input_tokens_details"),
    "output": ("completion_tokens_details", "output_tokens_details"),
}


def usage_of(usage: object) -> dict[str, Any]:
    """Returns the reported members of `input_tokens`, `output_tokens`, `cache_read_input_tokens`,
    `cache_creation_input_tokens`, `output_tokens_details.thinking_tokens` and, from a gateway that bills, `cost`.
    """
    if not isinstance(usage, Mapping):
        return {}
    read = _count(usage, "input", "cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
    written = _count(usage, "input", "cache_write_tokens", "cache_creation_input_tokens")
    reasoning = _count(usage, "output", "reasoning_tokens")
    prompt = _first(usage, "prompt_tokens", "input_tokens")
    output = _first(usage, "completion_tokens", "output_tokens")
    if prompt is not None and output is not None and reasoning is not None:
        # Some servers do not count reasoning as output: then the total is the sum of all three.
        output += reasoning if _first(usage, "total_tokens") == prompt + output + reasoning else 0
    cached = (read or 0) + (written or 0)
    if prompt is not None and cached <= prompt:  # otherwise the server counts cached tokens separately
        prompt -= cached
    cost = usage.get("cost")
    figures = {
        "input_tokens": prompt,
        "output_tokens": output,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens_details": None if reasoning is None else {"thinking_tokens": reasoning},
        "cost": cost if isinstance(cost, int | float) else None,
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def _count(usage: Mapping[str, Any], side: str, *names: str) -> int | None:
    for details in (*(usage.get(name) for name in _DETAILS[side]), usage):
        if isinstance(details, Mapping) and (found := _first(details, *names)) is not None:
            return found
    return None


def _first(usage: Mapping[str, Any], *names: str) -> int | None:
    """Returns the first member that is a number, as an integer, because some servers send null or a fraction."""
    for name in names:
        if isinstance(found := usage.get(name), int | float) and not isinstance(found, bool):
            return int(found)
    return None
