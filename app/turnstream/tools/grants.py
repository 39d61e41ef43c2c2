"""Grants of approvals: the tool and the inputs that a remembered approval covers.

In doubt the grant does not cover the call, and a person must decide.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NoReturn

from msgspec import to_builtins
from msgspec.json import encode

from turnstream.domain.asks import Grant
from turnstream.domain.turns import ToolSpec
from turnstream.kit.json_values import has_too_many_values
from turnstream.tools.schemas import InputSchema


def digest_of_tool(frozen: ToolSpec, current: ToolSpec) -> str:
    """Returns the SHA-256, in hexadecimal digits, of a tool as it is frozen in the turn and as this server would run it
    now. A change of description, schema, URL or header changes the digest; a change of `deferred` does not.
    """
    return sha256(encode([_compared(frozen), _compared(current)])).hexdigest()


def _compared(spec: ToolSpec) -> dict[str, Any]:
    """Returns the members that the digest covers. Another choice of members would invalidate all stored grants."""
    members: dict[str, Any] = to_builtins(spec)
    del members["deferred"]
    return members


def covers(grant: Grant, tool: str, digest: str | None, input_json: str) -> bool:
    """Whether `grant` allows the call of this exact tool with this input."""
    if (grant.tool, grant.digest) != (tool, digest):
        return False
    return grant.when is None or meets(json.loads(grant.when), input_json)


def meets(when: Mapping[str, Any], input_json: str) -> bool:
    """Whether the input has each member of `when`, and each meets its condition: `const`, `enum`, `minimum`, `maximum`.
    False for an input that two parsers may read differently, or that has too many values.
    """
    if has_too_many_values(input_json):
        return False
    try:
        value = json.loads(input_json or "{}", object_pairs_hook=_object_of, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    # In JSON Schema a text passes `minimum`.
    members = {name: ({"type": "number"} if {"minimum", "maximum"} & c.keys() else {}) | c for name, c in when.items()}
    schema = {"type": "object", "properties": members, "required": list(when)}
    return InputSchema(json.dumps(schema)).accepts(value)


def _object_of(members: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    pairs = list(members)
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a member comes twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
