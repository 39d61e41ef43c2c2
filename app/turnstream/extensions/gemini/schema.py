"""The subset of JSON Schema that the Gemini API accepts in function declarations and output formats. Pure."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

# Keywords that the API accepts. turnstream checks inputs against the full schema in any case.
_KNOWN = frozenset(
    {
        "$anchor",
        "$defs",
        "$id",
        "$ref",
        "additionalProperties",
        "anyOf",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "oneOf",
        "prefixItems",
        "properties",
        "required",
        "title",
        "type",
    }
)
_BY_NAME = frozenset({"$defs", "properties"})
_LISTS = frozenset({"anyOf", "oneOf", "prefixItems"})
# The API refuses other formats.
_FORMATS = frozenset({"date", "date-time", "duration", "time", "double", "float", "int32", "int64", "enum"})


@lru_cache(maxsize=1_000)
def declared_schema(text: str) -> bytes:
    """Returns the accepted subset of a schema, which is JSON text."""
    return msgspec.json.encode(subset_of(msgspec.json.decode(text)))


def subset_of(schema: Any) -> Any:
    """Returns the schema without unknown keywords. Translates `const`, `definitions`, and an `allOf` of one schema."""
    if not isinstance(schema, Mapping):
        return schema
    members = dict(schema)
    if "definitions" in members:
        members.setdefault("$defs", members["definitions"])
    if "const" in members:
        members.setdefault("enum", [members["const"]])
    parts = members.get("allOf")
    if isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], Mapping):
        members = {**parts[0], **members}
    if members.get("format") not in _FORMATS:
        members.pop("format", None)
    return {name: _value(name, value) for name, value in members.items() if name in _KNOWN}


def _value(name: str, value: Any) -> Any:
    if name in _BY_NAME and isinstance(value, Mapping):
        return {key: subset_of(each) for key, each in value.items()}
    if name in _LISTS and isinstance(value, list):
        return [subset_of(each) for each in value]
    if name == "$ref" and isinstance(value, str):
        return value.replace("#/definitions/", "#/$defs/", 1)
    return subset_of(value) if name in {"items", "additionalProperties"} else value
