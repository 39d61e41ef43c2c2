"""JSON schemas that others wrote: what a model sent is checked against them, within limits."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import islice
from time import thread_time
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend, validator_for
from pydantic_core import SchemaError as NoSuchPattern
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry
from referencing.exceptions import Unresolvable

_Check = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]

_TOLD_AT_ONCE = 10
_SHOWN_OF_A_MESSAGE = 300
_MOST_UNIQUE_ITEMS = 1000
_MOST_OBJECTS = 1000  # half a second is taken to see whether such a schema is one
_SECONDS = 0.1

# When the processor time for the input that is being checked is over, as of `thread_time`.
_until: ContextVar[float] = ContextVar("_until")


class TooCostly(Exception):
    """A schema can be written that takes years, and all turns of a replica would wait for it."""


@dataclass(frozen=True, slots=True)
class InputSchema:
    """The schema of a tool's input. A `$ref` leads nowhere but into the schema itself."""

    text: str

    @classmethod
    def checked(cls, text: str) -> "InputSchema":
        """Raises ValueError, in words, for what is no schema of a JSON object."""
        try:
            schema = json.loads(text)
            if not isinstance(schema, dict) or schema.get("type") != "object":
                raise ValueError("the input schema must be a JSON schema with the type object")
            if _objects_in(schema) > _MOST_OBJECTS:
                raise ValueError(f"the input schema has more than {_MOST_OBJECTS} objects")
            _dialect(schema).check_schema(schema, format_checker=None)
        except SchemaError as error:
            raise ValueError(f"the input schema is not valid: {_short(error.message)}") from None
        except (json.JSONDecodeError, RecursionError):
            raise ValueError("the input schema is not valid JSON, or too deep") from None
        return cls(text)

    def complaint(self, value: object, *, seconds: float = _SECONDS) -> str | None:
        """What is wrong with an input. Nothing is, if that takes too long to say: then the tool is the judge."""
        schema = json.loads(self.text)
        dialect = _bounded(_dialect(schema), with_patterns='"patternProperties"' in json.dumps(schema))
        validator = dialect(json.loads(self.text, object_hook=_without_dialect), registry=Registry())
        token = _until.set(thread_time() + seconds)
        try:
            errors = list(islice(validator.iter_errors(value), _TOLD_AT_ONCE))
        except (TooCostly, RecursionError, Unresolvable):
            return None
        finally:
            _until.reset(token)
        return " ".join(_sentence(best_match([error]) or error) for error in errors) or None


def _objects_in(value: object) -> int:
    match value:
        case dict():
            return 1 + sum(_objects_in(inner) for inner in value.values())
        case list():
            return sum(_objects_in(inner) for inner in value)
        case _:
            return 0


def _dialect(schema: Mapping[str, Any]) -> Any:
    return validator_for(schema, default=Draft202012Validator)


@cache
def _bounded(dialect: Any, *, with_patterns: bool) -> Any:
    """The same, but with an eye on the clock, and without Python's regular expressions, which have none."""
    checks = {**dialect.VALIDATORS, "pattern": _pattern}
    for keyword in ("patternProperties", "additionalProperties", "unevaluatedProperties") if with_patterns else ():
        checks[keyword] = _unchecked
    if "uniqueItems" in checks:
        checks["uniqueItems"] = _unless_many(checks["uniqueItems"])
    return extend(dialect, {keyword: _timed(check) for keyword, check in checks.items()})  # type: ignore[no-untyped-call]


def _timed(check: _Check) -> _Check:
    def timed(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        if thread_time() > _until.get():
            raise TooCostly
        return check(validator, value, instance, schema)

    return timed


def _unless_many(check: _Check) -> _Check:
    """Items that cannot be sorted are compared each with each."""

    def bounded(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        many = isinstance(instance, list) and len(instance) > _MOST_UNIQUE_ITEMS
        return None if many else check(validator, value, instance, schema)

    return bounded


def _unchecked(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    """Names that must match a pattern are matched by Python in three places."""


def _pattern(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ARG001
    if isinstance(instance, str) and not _matches(value, instance):
        yield ValidationError(f"{instance!r} does not match {value!r}")


def _matches(pattern: str, text: str) -> bool:
    """In time that grows with the text alone. What such an engine does not know (looking around) is not checked."""
    try:
        expression = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except NoSuchPattern:
        return True
    return expression.isinstance_python(text)


def _without_dialect(found: dict[str, Any]) -> dict[str, Any]:
    """At a `$schema` inside, a validator would be exchanged for an unbounded one."""
    if isinstance(found.get("$schema"), str):
        del found["$schema"]
    return found


def _sentence(error: ValidationError) -> str:
    where = ".".join(str(step) for step in error.absolute_path)
    return f"`{where}`: {_short(error.message)}." if where else f"{_short(error.message)}."


def _short(message: str) -> str:
    return message if len(message) <= _SHOWN_OF_A_MESSAGE else f"{message[:_SHOWN_OF_A_MESSAGE]}…"
