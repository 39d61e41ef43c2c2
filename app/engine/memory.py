"""What a turn remembers of its calls: how many there were, and what identical ones gave. Read from its rows."""

import json
from collections.abc import Container, Iterable, Sequence

from app.domain.blocks import Block
from app.domain.kinds import TOOL_RESULT
from app.tools.tool import Outcome


def is_over_limit(call: Block, blocks: Iterable[Block], limit: int | None) -> bool:
    """Whether there were `limit` calls of this tool before this one."""
    if limit is None:
        return False
    return sum(other.is_call and other.name == call.name and other.index < call.index for other in blocks) >= limit


def over_limit(call: Block, limit: int) -> Outcome:
    text = f"This call was not run: {call.name} may be called {limit} times in one turn, and was."
    return Outcome(text, kind="refused", notes={"calls_per_turn": limit})


def earlier_result(call: Block, blocks: Sequence[Block], harmless: Container[str | None]) -> Outcome | None:
    """What an identical call of this turn gave before, unless it failed, or a call of any tool but the `harmless` ones
    came in between: that may have changed what there is to read.
    """
    results = {_key(block): block for block in blocks if block.type == TOOL_RESULT and _is_memorable(block)}
    for other in reversed([block for block in blocks if block.is_call and block.index < call.index]):
        if other.name not in harmless:
            break
        if same_call(other, call) and (result := results.get(_key(other))):
            return Outcome(result.text, notes={"memo": other.tool_use_id}, layout=result.data)
    return None


def _is_memorable(result: Block) -> bool:
    """Not a failure, nor the answer to what a person made of the input."""
    notes = json.loads(result.notes or "{}")
    return not result.is_error and "input" not in notes.get("approval", {})


def same_call(one: Block, other: Block) -> bool:
    return one.name == other.name and _value(one.text) == _value(other.text)


def _value(input_json: str) -> object:
    try:
        return json.loads(input_json or "{}")
    except (ValueError, RecursionError):
        return input_json


def _key(block: Block) -> tuple[int, str | None]:
    return block.round, block.tool_use_id
