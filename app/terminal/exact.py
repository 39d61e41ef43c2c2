"""JSON as it is: nothing in it can look like something else, and a terminal obeys none of it."""

import json
from typing import Any


def compact(value: Any) -> str:
    return _visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def pretty(value: Any) -> str:
    return _visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2))


def same(one: Any, other: Any) -> bool:
    """As JSON, where 1 is neither true nor 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _visible(text: str) -> str:
    """What is not printed, or turns the line around, is escaped as JSON has it."""
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
