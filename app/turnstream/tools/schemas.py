"""Checks the input schemas of foreign tools, and validates inputs within limits of time and depth."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import islice
from time import thread_time
from typing import Any

import jsonschema_rs
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend, validator_for
from pydantic_core import SchemaError as InvalidPattern
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry
from referencing.exceptions import Unresolvable

_Check = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]

_MAX_ERRORS = 10  # that one complaint lists
_MAX_MESSAGE_CHARS = 300
_MAX_UNIQUE_ITEMS = 1000
# Limits of a schema, because a Python library validates inputs in the event loop, which all turns share.
_MAX_CHARS = 256_000
_MAX_OBJECTS = 1000
_MAX_ITEMS = 5000
# The error of an invalid schema is named only up to this number of items: the search for the error may process each
# item repeatedly, and take 20 ms.
_MAX_NAMED_ITEMS = 500
_DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-04/schema#",
)
_MAX_SECONDS = 0.1
# Most nested checks. Python's own limit is too high: near the end of the stack, finalizers of other objects fail.
_MAX_DEPTH = 200


class TooCostly(Exception):
    """The validation takes too long. A short schema can take years, and would block all turns of a replica."""


@dataclass(slots=True)
class _Budget:
    until: float  # a value of `thread_time`, which measures processor time
    depth: int = 0


_budget: ContextVar[_Budget] = ContextVar("_budget")


@dataclass(slots=True)
class SchemaRoom:
    """The remaining room for the schemas of one request. The server checks these schemas in one go, without a pause."""

    chars: int = 2 * _MAX_CHARS
    objects: int = 5 * _MAX_OBJECTS
    items: int = _MAX_ITEMS

    def take(self, chars: int, objects: int, items: int) -> None:
        """Subtracts the size of a schema. Raises ValueError if the room is too small."""
        self.chars, self.objects, self.items = self.chars - chars, self.objects - objects, self.items - items
        if min(self.chars, self.objects, self.items) < 0:
            most = f"{2 * _MAX_CHARS:,} characters, {5 * _MAX_OBJECTS:,} objects or {_MAX_ITEMS:,} items of lists"
            raise ValueError(f"the input schemas of all tools have more than {most} together: make them smaller")


@dataclass(frozen=True, slots=True)
class InputSchema:
    """The schema of a tool's input. Each `$ref` must lead into the schema itself."""

    text: str

    @classmethod
    def checked(cls, text: str, room: SchemaRoom | None = None) -> "InputSchema":
        """Raises ValueError unless the text is the schema of a JSON object, within the limits and the `room`."""
        try:
            if len(text) > _MAX_CHARS:
                raise ValueError(f"the input schema has more than {_MAX_CHARS:,} characters: make it smaller")
            schema = json.loads(text)
            if not isinstance(schema, dict) or schema.get("type") != "object":
                raise ValueError("the input schema must be a JSON schema with the type object")
            objects, items = _size(schema)
            if objects > _MAX_OBJECTS or items > _MAX_ITEMS:
                most = f"{_MAX_OBJECTS} objects or {_MAX_ITEMS} items of lists"
                raise ValueError(f"the input schema has more than {most}: make it smaller")
            if room is not None:
                room.take(len(text), objects, items)
            if schema.get("$schema", _DIALECTS[0]) not in _DIALECTS:
                raise ValueError(f"`$schema` of the input schema must be one of {', '.join(_DIALECTS)}")
            if items > _MAX_NAMED_ITEMS and not jsonschema_rs.meta.is_valid(schema):
                raise ValueError("the input schema is not valid, and its lists are too long to say where")
            jsonschema_rs.meta.validate(schema)
        except jsonschema_rs.ValidationError as error:
            raise ValueError(f"the input schema is not valid: {_shorten(error.message)}") from None
        except (json.JSONDecodeError, RecursionError):
            raise ValueError("the input schema is not valid JSON, or too deep") from None
        return cls(text)

    def complaint(self, value: object, *, seconds: float = _MAX_SECONDS) -> str | None:
        """Returns the errors in an input, as sentences for the model; None for a valid input."""
        try:
            errors = self._errors(value, seconds)
        except (TooCostly, RecursionError, Unresolvable):
            return None  # the tool itself must validate this input
        sentences = []
        for error in errors:
            match = best_match([error]) or error
            path = ".".join(map(str, match.absolute_path))
            sentences.append(f"`{path}`: {_shorten(match.message)}." if path else f"{_shorten(match.message)}.")
        return " ".join(sentences) or None

    def accepts(self, value: object) -> bool:
        """Whether an input is valid. False if the validation exceeds the limits."""
        try:
            return not self._errors(value, _MAX_SECONDS)
        except (TooCostly, RecursionError, Unresolvable):
            return False

    def _errors(self, value: object, seconds: float) -> list[ValidationError]:
        schema = json.loads(self.text)
        dialect = _limited_dialect(_dialect(schema), with_patterns='"patternProperties"' in json.dumps(schema))
        validator = dialect(json.loads(self.text, object_hook=_without_dialect), registry=Registry())
        token = _budget.set(_Budget(thread_time() + seconds))
        try:
            return list(islice(validator.iter_errors(value), _MAX_ERRORS))
        finally:
            _budget.reset(token)


def _size(value: object) -> tuple[int, int]:
    """Counts the objects in a JSON value, and the items in its lists."""
    match value:
        case dict():
            inner = [_size(each) for each in value.values()]
            return 1 + sum(objects for objects, _ in inner), sum(items for _, items in inner)
        case list():
            inner = [_size(each) for each in value]
            return sum(objects for objects, _ in inner), len(value) + sum(items for _, items in inner)
        case _:
            return 0, 0


def _dialect(schema: Mapping[str, Any]) -> Any:
    return validator_for(schema, default=Draft202012Validator)


@cache
def _limited_dialect(dialect: Any, *, with_patterns: bool) -> Any:
    """Returns the dialect with a budget, and without Python's regular expressions, because their time has no bound."""
    checks = {**dialect.VALIDATORS, "pattern": _match_pattern}
    # Three checks of the library match names with Python's regular expressions.
    for keyword in ("patternProperties", "additionalProperties", "unevaluatedProperties") if with_patterns else ():
        checks[keyword] = lambda *_: None
    if "uniqueItems" in checks:
        checks["uniqueItems"] = _unless_many(checks["uniqueItems"])
    return extend(dialect, {keyword: _limited(check) for keyword, check in checks.items()})  # type: ignore[no-untyped-call]


def _limited(check: _Check) -> _Check:
    def limited(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        budget = _budget.get()
        if thread_time() > budget.until or budget.depth >= _MAX_DEPTH:
            raise TooCostly
        budget.depth += 1
        try:
            yield from check(validator, value, instance, schema) or ()
        finally:
            budget.depth -= 1

    return limited


def _unless_many(check: _Check) -> _Check:
    """Skips the check for long lists, because comparing unsortable items takes quadratic time."""

    def bounded(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        many = isinstance(instance, list) and len(instance) > _MAX_UNIQUE_ITEMS
        return None if many else check(validator, value, instance, schema)

    return bounded


def _match_pattern(validator: Any, pattern: str, text: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ARG001
    """Matches in linear time. A pattern with unsupported syntax (lookaround) counts as matched."""
    if not isinstance(text, str):
        return
    try:
        expression = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except InvalidPattern:
        return
    if not expression.isinstance_python(text):
        yield ValidationError(f"{text!r} does not match {pattern!r}")


def _without_dialect(schema: dict[str, Any]) -> dict[str, Any]:
    """Removes an inner `$schema`, because the library would switch to a validator without limits."""
    if isinstance(schema.get("$schema"), str):
        del schema["$schema"]
    return schema


def _shorten(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE_CHARS else f"{message[:_MAX_MESSAGE_CHARS]}…"
