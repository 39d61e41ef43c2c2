import json
import re
import sys
from pathlib import Path
from time import thread_time
from typing import Any

import pytest

from turnstream.tools import schemas
from turnstream.tools.schemas import InputSchema


def schema(**rest: Any) -> str:
    return json.dumps({"type": "object", **rest})


def complaint(value: object, **rest: Any) -> str | None:
    return InputSchema.checked(schema(**rest)).complaint(value, seconds=30)


CITY = {"properties": {"city": {"type": "string"}, "days": {"items": {"type": "integer"}}}, "required": ["city"]}


def test_a_valid_input_has_no_complaint() -> None:
    assert complaint({"city": "Oslo", "days": [1, 2]}, **CITY) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "'city' is a required property."),
        ({"city": 3}, "`city`: 3 is not of type 'string'."),
        ({"city": "Oslo", "days": [1, "two"]}, "`days.1`: 'two' is not of type 'integer'."),
        ({"days": ["two"]}, "`days.0`: 'two' is not of type 'integer'. 'city' is a required property."),
    ],
)
def test_each_mistake_is_reported_with_its_path(value: object, words: str) -> None:
    assert complaint(value, **CITY) == words


def test_many_mistakes_and_long_values_are_reported_in_part() -> None:
    text = complaint({"days": ["x" * 10_000] * 100}, properties=CITY["properties"])
    assert text is not None
    assert text.count("`days.") == 10
    assert len(text) < 4000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "too deep"),
        ("[]", "type object"),
        ('{"type": "string"}', "type object"),
        (schema(properties=3), '3 is not of type "object"'),
        (schema(allOf=[{}] * 1000), "more than 1000 objects"),
    ],
)
def test_a_schema_must_be_that_of_an_object(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        InputSchema.checked(text)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ({"properties": {"a": {"type": [None, *range(4900)]}}}, "is not valid"),
        ({"properties": {"a": {"enum": [None, *range(6000)]}}}, "more than 1000 objects or 5000 items"),
        ({"properties": {str(number): {} for number in range(1000)}}, "more than 1000 objects or 5000 items"),
        ({"description": "x" * 256_000}, "more than 256,000 characters"),
        ({"$schema": 5}, "`$schema` of the input schema must be one of"),
        ({"$schema": ["x"]}, "`$schema` of the input schema must be one of"),
        ({"$schema": "http://example.org/schema"}, "`$schema` of the input schema must be one of"),
    ],
)
def test_a_schema_that_is_too_large_or_of_no_dialect_is_refused_at_once(rest: dict[str, Any], reason: str) -> None:
    start = thread_time()
    with pytest.raises(ValueError, match=re.escape(reason)):
        InputSchema.checked(schema(**rest))
    assert thread_time() - start < 2, "the event loop of all turns waits for it, and comparing pairs took 8 s"


def test_the_dialect_that_a_schema_names_is_the_one_it_is_read_in() -> None:
    pair = {"properties": {"pair": {"items": [{"type": "string"}, {"type": "integer"}]}}}
    text = complaint({"pair": ["a", "b"]}, **{"$schema": "http://json-schema.org/draft-07/schema#"}, **pair)
    assert text == "`pair.1`: 'b' is not of type 'integer'."


# the library would announce the retrieval of a schema with this warning
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_reference_leads_nowhere_outside(tmp_path: Path) -> None:
    elsewhere = tmp_path / "schema.json"
    elsewhere.write_text('{"type": "null"}')
    assert complaint({"x": 1}, properties={"x": {"$ref": elsewhere.as_uri()}}) is None
    assert (
        complaint({"x": 1}, properties={"x": {"$ref": "#/$defs/y"}}, **{"$defs": {"y": {"type": "null"}}}) is not None
    )


def test_a_reference_to_itself_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    depths: list[int] = []

    def time_and_depth() -> float:
        frame, depth = sys._getframe(), 0
        while frame.f_back is not None:
            frame, depth = frame.f_back, depth + 1
        depths.append(depth)
        return thread_time()

    monkeypatch.setattr(schemas, "thread_time", time_and_depth)
    assert complaint({"x": 1}, properties={"x": {"$ref": "#/properties/x"}}) is None
    assert max(depths) - min(depths) < sys.getrecursionlimit() * 0.8, "finalizers of other objects need the rest"


@pytest.mark.parametrize("dialect", [{}, {"$schema": "http://json-schema.org/draft-07/schema#"}])
def test_a_schema_that_takes_years_is_given_up_soon(dialect: dict[str, str]) -> None:
    branches = {f"a{n}": {**dialect, "anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(60)}
    text = schema(properties={"x": {"$ref": "#/$defs/a0"}}, **{"$defs": {**branches, "a60": {"type": "string"}}})
    start = thread_time()
    assert InputSchema.checked(text).complaint({"x": 1}, seconds=0.05) is None
    assert thread_time() - start < 5


PATTERN = {"properties": {"x": {"pattern": "^(a+)+$"}}}
NAMES = {"^(a+)+$": {"type": "string"}}


def test_a_pattern_is_matched_in_time_that_grows_with_the_text_alone() -> None:
    assert complaint({"x": "aaaa"}, **PATTERN) is None
    text = complaint({"x": "a" * 100 + "!"}, **PATTERN)
    assert text is not None
    assert "does not match" in text


def test_a_pattern_that_looks_around_is_left_to_the_tool() -> None:
    assert complaint({"x": "b"}, properties={"x": {"pattern": "(?=a)"}}) is None


@pytest.mark.parametrize(
    "rest",
    [
        {"patternProperties": NAMES},
        {"patternProperties": NAMES, "additionalProperties": False},
        {"$defs": {"y": {"patternProperties": NAMES}}, "$ref": "#/$defs/y", "unevaluatedProperties": False},
    ],
)
def test_patterns_of_names_are_left_to_the_tool(rest: dict[str, Any]) -> None:
    assert complaint({"a" * 100 + "!": 1}, **rest) is None


def test_many_items_are_not_compared_each_with_each() -> None:
    items = {"properties": {"x": {"uniqueItems": True}}}
    assert complaint({"x": [{}, {}]}, **items) is not None
    assert complaint({"x": [{"n": n} for n in range(20_000)]}, **items) is None
