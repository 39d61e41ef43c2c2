"""Deferred tools: model requests omit the definitions of these tools. The model searches for such a tool, and calls it
through one generic tool. So all requests of a chat have the same list of tools, which the provider caches.
"""

import json
from dataclasses import replace

from turnstream.domain.blocks import Block, CallKey
from turnstream.domain.turns import Turn, TurnRequest

FIND_TOOLS = "find_tools"
CALL_TOOL = "call_tool"


class NamedCalls:
    """Converts calls of the generic tool to calls of the named tools. If the request defers no tool, a tool with the
    generic name is an ordinary tool, and no call is converted. Each call is parsed once, because inputs may be long.
    """

    def __init__(self, request: TurnRequest | None) -> None:
        tools = request.tools if request else ()
        self._tools = {spec.name: spec for spec in tools} if any(spec.deferred for spec in tools) else {}
        self._read: dict[CallKey, tuple[Block, Block]] = {}

    def call(self, call: Block) -> Block:
        """Returns the call with the name and the input of the tool that it names. A call that names no tool of this
        server is returned unchanged, and the generic tool then reports the mistake.
        """
        if not self._tools or call.name != CALL_TOOL or not call.is_call:
            return call
        read = self._read.get(call.key)
        if read is None or read[0] is not call:
            read = self._read[call.key] = call, self._as_named(call)
        return read[1]

    def turn(self, turn: Turn) -> Turn:
        return replace(turn, blocks=tuple(map(self.call, turn.blocks))) if self._tools else turn

    def _as_named(self, call: Block) -> Block:
        name, input = _named_in(call.text)
        spec = self._tools.get(name) if isinstance(name, str) else None
        if spec is None or spec.client or spec.role is not None or spec.name in {FIND_TOOLS, CALL_TOOL}:
            return call
        return replace(call, name=spec.name, text=input)


def input_of(call: Block, name: str) -> str:
    """Returns the input for the tool `name`, which is nested in the call's input if the call is of the generic tool."""
    if call.name != CALL_TOOL or name == CALL_TOOL:
        return call.text
    return _named_in(call.text)[1]


def _named_in(text: str) -> tuple[object, str]:
    """Parses the generic tool's input into the name of the tool to call (None if missing) and that tool's input."""
    try:
        given = json.loads(text)
        return (given.get("name"), json.dumps(given.get("input", {}))) if isinstance(given, dict) else (None, "{}")
    except (ValueError, RecursionError):
        return None, "{}"
