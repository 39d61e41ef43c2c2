"""Serialization of tool results for a model: as compact JSON, or as indented text."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from turnstream.tools.policy import ResultForm


def serialize(value: object, form: ResultForm) -> str:
    """Serializes any value that pydantic supports; raises PydanticSerializationError for other values."""
    if form == "text":
        return as_text(value)
    try:
        return to_json(value, inf_nan_mode="null").decode()
    except PydanticSerializationError:  # UTF-8 has no lone surrogates; `storable` replaces them later
        return json.dumps(to_jsonable_python(value), ensure_ascii=False, separators=(",", ":"))


def as_text(value: object) -> str:
    """Formats a value as `key: value` lines and `- ` bullets. Nested and multi-line values are indented below."""
    return "\n".join(_lines(to_jsonable_python(value)))


def _lines(value: Any) -> Iterator[str]:
    match value:
        case dict() if value:
            for key, inner in value.items():
                lines = list(_lines(inner))
                if len(lines) == 1 and not (inner and isinstance(inner, list | dict)):
                    yield f"{key}: {lines[0]}".rstrip()
                else:
                    yield f"{key}:"
                    yield from _indented(lines)
        case list() if value:
            for inner in value:
                first, *others = _lines(inner)
                yield f"- {first}".rstrip()
                yield from _indented(others)
        case dict() | list():
            yield "(empty)"
        case str():
            yield from value.split("\n")
        case None:
            yield "none"
        case bool():
            yield "yes" if value else "no"
        case _:
            yield str(value)


def _indented(lines: list[str]) -> Iterator[str]:
    return (f"  {line}".rstrip() for line in lines)
