"""The schemas that providers can enforce during generation."""

from typing import Any

import pytest

from turnstream.kit.strict_schema import is_strict


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


TEXT = {"type": "string"}
TREE = {"type": "array", "items": {"$ref": "#/$defs/tree"}}


def nested(depth: int) -> dict[str, Any]:
    return closed(a=TEXT if depth == 1 else nested(depth - 1))


@pytest.mark.parametrize(
    "schema",
    [
        closed(),
        closed(year={"type": "integer", "title": "Year", "description": "Which year."}),
        closed(when={"type": "string", "format": "date"}, kind={"type": "string", "enum": ["a", "b"]}),
        closed(year={"type": ["integer", "null"]}, fixed={"type": "number", "const": 1.5}),
        closed(year={"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "If it is known."}),
        closed(all={"type": "array", "items": closed(one=TEXT)}),
        {**closed(a={"$ref": "#/$defs/a"}, b={"$ref": "#/$defs/a"}), "$defs": {"a": closed(x=TEXT)}},
        nested(9),
    ],
)
def test_a_model_can_be_held_to_closed_objects_of_plain_values(schema: dict[str, Any]) -> None:
    assert is_strict(schema)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        True,
        {"type": "array", "items": TEXT},
        {"type": "object"},
        {**closed(a=TEXT), "additionalProperties": True},
        {**closed(a=TEXT), "additionalProperties": TEXT},
        {name: value for name, value in closed(a=TEXT).items() if name != "additionalProperties"},
        {**closed(a=TEXT), "required": []},
        {**closed(a=TEXT), "required": ["a", "b"]},
        {**closed(a=TEXT), "required": "a"},
        {**closed(a=TEXT), "required": [1]},
        {**closed(a=TEXT), "properties": ["a"]},
        {**closed(a=TEXT), "minProperties": 1},
        {**closed(a=TEXT), "$defs": ["a"]},
        {**closed(a=TEXT), "$defs": {"a": {"type": "object"}}},
        {**closed(a={"$ref": "#/$defs/tree"}), "$defs": {"tree": closed(below=TREE)}},
        closed(a={"$ref": "#/$defs/a"}),
        closed(a={"$ref": "#"}),
        closed(a={"$ref": 1}),
        {**closed(a={"$ref": "#/$defs/a", "description": "A."}), "$defs": {"a": TEXT}},
        closed(a={}),
        closed(a=True),
        closed(a={"type": "text"}),
        closed(a={"type": [["string"]]}),
        closed(a={"enum": ["a"]}),
        closed(a={"type": "string", "enum": "a"}),
        closed(a={"type": "string", "enum": [["a"]]}),
        closed(a={"type": "string", "enum": [str(n) for n in range(501)]}),
        closed(a={"type": "object", "const": {}}),
        closed(a={"type": "string", "pattern": "^a"}),
        closed(a={"type": "string", "format": "uri"}),
        closed(a={"type": "string", "format": ["date"]}),
        closed(a={"type": "integer", "minimum": 1}),
        closed(a={"type": "array"}),
        closed(a={"type": "array", "items": [TEXT]}),
        closed(a={"type": "array", "items": TEXT, "minItems": 1}),
        closed(a={"anyOf": TEXT}),
        closed(a={"anyOf": [TEXT, {}]}),
        closed(a={"anyOf": [TEXT], "type": "string"}),
        closed(a={"allOf": [TEXT]}),
        closed(**{f"a{n}": {"type": ["string", "null"]} for n in range(17)}),
        closed(**{f"a{n}": TEXT for n in range(200)}),
        nested(10),
    ],
)
def test_keywords_that_only_some_providers_accept_are_left_to_the_tool(schema: object) -> None:
    assert not is_strict(schema)
