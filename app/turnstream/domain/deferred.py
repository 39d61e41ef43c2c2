"""Deferred tools: their definitions are not in the requests of the model, which finds them by a search and calls them
through one generic tool. So the tools of all requests of a chat are the same text, which the provider caches.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from turnstream.domain.blocks import Block
from turnstream.domain.turns import ToolSpec, Turn

FIND_TOOLS = "find_tools"
CALL_TOOL = "call_tool"


def as_named(call: Block, tools: Sequence[ToolSpec]) -> Block:
    """A call of the generic tool as one of the tool that it names, with its name and its input. A call that names no
    tool of this server is returned as it is; the generic tool then says what is wrong.
    """
    if call.name != CALL_TOOL or not call.is_call:
        return call
    name, input = _named_in(call.text)
    spec = next((spec for spec in tools if spec.name == name), None)
    if spec is None or spec.client or spec.role is not None or spec.name in {FIND_TOOLS, CALL_TOOL}:
        return call
    return replace(call, name=spec.name, text=input)


def input_of(call: Block, name: str) -> str:
    """The input of a call, as one of the tool `name`, which an ask has for it."""
    if call.name != CALL_TOOL or name == CALL_TOOL:
        return call.text
    return _named_in(call.text)[1]


def with_named_calls(turn: Turn) -> Turn:
    """The turn with its calls as those of the tools that they name."""
    tools = turn.request.tools if turn.request else ()
    if not any(spec.deferred for spec in tools):
        return turn
    return replace(turn, blocks=tuple(as_named(block, tools) for block in turn.blocks))


def _named_in(text: str) -> tuple[object, str]:
    """The name in the input of the generic tool, None without one, and the input for that tool as JSON."""
    try:
        given = json.loads(text)
        return (given.get("name"), json.dumps(given.get("input", {}))) if isinstance(given, dict) else (None, "{}")
    except (ValueError, RecursionError):
        return None, "{}"
