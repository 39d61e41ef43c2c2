"""The figures of OpenAI's two APIs, and of their imitators, as the ones that turns keep. Pure.

A turn's `input_tokens` are those that were neither read from nor written to a cache; OpenAI's count holds all of them.
"""

from collections.abc import Mapping
from typing import Any

_DETAILS = {
    "input": ("prompt_tokens_details", "input_tokens_details"),
    "output": ("completion_tokens_details", "output_tokens_details"),
}


def usage_of(said: object) -> dict[str, Any]:
    """What is known of `input_tokens`, `output_tokens`, `cache_read_input_tokens`, `cache_creation_input_tokens`,
    `output_tokens_details.thinking_tokens` and, where the provider bills by itself, `cost`.
    """
    if not isinstance(said, Mapping):
        return {}
    read = _count(said, "input", "cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
    written = _count(said, "input", "cache_write_tokens", "cache_creation_input_tokens")
    thought = _count(said, "output", "reasoning_tokens")
    cost = said.get("cost")
    figures = {
        "input_tokens": _uncached(_first(said, "prompt_tokens", "input_tokens"), (read or 0) + (written or 0)),
        "output_tokens": _output(said, thought),
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens_details": None if thought is None else {"thinking_tokens": thought},
        "cost": cost if isinstance(cost, int | float) else None,
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def _uncached(prompt: int | None, cached: int) -> int | None:
    """Where more is said to be cached than was asked, the two were counted apart."""
    return prompt if prompt is None or cached > prompt else prompt - cached


def _output(said: Mapping[str, Any], thought: int | None) -> int | None:
    """Some count thinking apart; their total tells."""
    written, asked, total = (
        _first(said, "completion_tokens", "output_tokens"),
        _first(said, "prompt_tokens", "input_tokens"),
        _first(said, "total_tokens"),
    )
    if None not in {written, asked, thought} and total == (asked or 0) + (written or 0) + (thought or 0):
        return (written or 0) + (thought or 0)
    return written


def _count(said: Mapping[str, Any], side: str, *names: str) -> int | None:
    for details in (*(said.get(name) for name in _DETAILS[side]), said):
        if isinstance(details, Mapping) and (found := _first(details, *names)) is not None:
            return found
    return None


def _first(said: Mapping[str, Any], *names: str) -> int | None:
    """A count; some servers answer with null, some with a fraction."""
    for name in names:
        if isinstance(found := said.get(name), int | float) and not isinstance(found, bool):
            return int(found)
    return None
