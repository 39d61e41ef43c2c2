"""Converts options of the form NAME=VALUE to members of a request's body."""

import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

import click

from turnstream_client.events import Json


def params_of(words: Iterable[str]) -> Json:
    """Converts `max_tokens=100` and `thinking.type=adaptive` to `params`. Raises click.UsageError."""
    return nested((f"params.{name}", toml_value(text)) for name, text in assignments(words, "max_tokens=500"))


def assignments(words: Iterable[str], example: str) -> Iterator[tuple[str, str]]:
    """Splits each word into a name and a value. Raises click.UsageError, which names the example, if a word has no
    value.
    """
    for word in words:
        name, mark, value = word.partition("=")
        if not mark:
            raise click.UsageError(f"{word!r} must have the form NAME=VALUE, such as {example}.")
        yield name, value


def toml_value(text: str) -> Any:
    """Parses a TOML value, such as a number or a list. Returns any other text unchanged."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def nested(values: Iterable[tuple[str, Any]]) -> Json:
    """Converts names with dots to objects within objects."""
    found: Json = {}
    for name, value in values:
        for step in reversed(name.split(".")):
            value = {step: value}  # noqa: PLW2901
        found = merged(found, value)
    return found


def merged(under: Json, over: Json) -> Json:
    """Returns the members of both objects. If both have an object of the same name, the two objects are merged; other
    members of `over` replace members of `under`.
    """
    both = {
        name: merged(under[name], value)
        for name, value in over.items()
        if isinstance(value, dict) and isinstance(under.get(name), dict)
    }
    return {**under, **over, **both}
