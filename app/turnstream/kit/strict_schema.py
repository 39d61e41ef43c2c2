"""Strict JSON Schemas: schemas that providers can enforce while a model writes.

Anthropic and OpenAI both document these rules for structured outputs. A keyword that only one of these providers
accepts is not strict, because a turn may fall back from one provider to the other.
"""

from collections.abc import Container, Iterator, Mapping
from typing import Any

_DEEPEST = 10
_MOST_PARTS = 200
_MOST_UNIONS = 16
_MOST_CHOICES = 500
_DEFINITION = "#/$defs/"
_MEMBERS = frozenset(
    {
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "description",
        "enum",
        "format",
        "items",
        "properties",
        "required",
        "title",
        "type",
    }
)
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})

Json = Mapping[str, Any]


def is_strict(schema: object) -> bool:
    """Returns True if providers can enforce `schema`: every object is closed, every property is required, and the
    schema has no bounds, patterns or recursion.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return False
    root = {name: value for name, value in schema.items() if name != "$defs"}
    defined = schema.get("$defs", {})
    if not isinstance(defined, Mapping):
        return False
    parts = unions = choices = 0
    for start in (root, *defined.values()):
        for part, depth in _parts_of(start, defined):
            parts += 1
            if parts > _MOST_PARTS or depth > _DEEPEST or not _fits(part, defined):
                return False
            unions += "anyOf" in part or isinstance(part.get("type"), list)
            choices += len(part.get("enum", ()))
    return unions <= _MOST_UNIONS and choices <= _MOST_CHOICES


def _parts_of(schema: Any, defined: Json, depth: int = 1) -> Iterator[tuple[Any, int]]:
    """Yields a schema, then its parts and targets of references. The caller checks each schema before the next."""
    yield schema, depth
    held = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    if "items" in schema:
        held.append(schema["items"])
    if "$ref" in schema:
        held.append(defined[schema["$ref"].removeprefix(_DEFINITION)])
    for part in held:
        yield from _parts_of(part, defined, depth + 1)


def _fits(schema: Any, defined: Json) -> bool:
    if not isinstance(schema, Mapping) or not schema.keys() <= _MEMBERS:
        return False
    if "$ref" in schema:
        return len(schema) == 1 and _is_text_in(schema["$ref"], {_DEFINITION + name for name in defined})
    if "anyOf" in schema:
        return isinstance(schema["anyOf"], list) and schema.keys() <= {"anyOf", "title", "description"}
    named = schema.get("type")
    types = named if isinstance(named, list) else [named]
    choices = schema.get("enum", [])
    return (
        all(isinstance(type, str) and type in _TYPES for type in types)
        and ("object" in types) == ("properties" in schema)
        and ("object" not in types or _is_closed(schema))
        and ("array" in types) == ("items" in schema)
        and ("format" not in schema or _is_text_in(schema["format"], _FORMATS))
        and isinstance(choices, list)
        and all(isinstance(choice, str | int | float | None) for choice in (*choices, schema.get("const")))
    )


def _is_closed(schema: Json) -> bool:
    properties, required = schema["properties"], schema.get("required")
    return (
        schema.get("additionalProperties") is False
        and isinstance(properties, Mapping)
        and isinstance(required, list)
        and all(_is_text_in(name, properties) for name in required)
        and set(required) == properties.keys()
    )


def _is_text_in(value: object, known: Container[str]) -> bool:
    return isinstance(value, str) and value in known
