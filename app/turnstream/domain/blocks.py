"""Blocks: the pieces a turn is made of."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnstream.domain.kinds import TOOL_USE

READ_RESULT = "read_result"  # the tool that reads the part of a result that was omitted

# The `data` of a verdict: whether the output was accepted.
ACCEPTED, REJECTED = '{"type":"verdict","taken":true}', '{"type":"verdict","taken":false}'

# The member of the notes of a message's first block that names its author, if that is not the owner.
AUTHOR = "author"

# The text of the result of a call that was cut short by the end of its turn; {} is the turn's stop reason.
CUT_SHORT = "This call has no result: the turn ended ({})."


# The round and the id of a call: an id may come again in a later round.
CallKey = tuple[int, str]


@dataclass(frozen=True, slots=True)
class PreliminaryOutput:
    """The output of a running tool so far. `data` is a JSON value for clients."""

    round: int
    tool_use_id: str
    name: str
    text: str
    data: Any = None

    @property
    def key(self) -> CallKey:
        """The call that runs."""
        return self.round, self.tool_use_id


CallState = Literal["started", "settled", "unknown"]


@dataclass(frozen=True, slots=True)
class Block:
    """One closed block, as its row holds it.

    `text` is the streamed text: prose, thinking, or the JSON text of a tool input; for a tool_result the text that the
    tool returned. `data` is the provider's own JSON object for the block, in which the streamed member stays as it
    began; for a tool_result its layout (turnstream.domain.results); None if `text` is all there is. `attempt` wrote the
    block. `notes` is a JSON object of ours about a tool_result (cut, tried again, answered by another tool) or about a
    message, and `client_data` the JSON text that the tool gave for clients beside it; no provider sees either.
    """

    index: int
    round: int
    attempt: int
    type: str
    text: str = ""
    data: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    is_error: bool = False
    interrupted: bool = False
    notes: str | None = None
    client_data: str | None = None

    @property
    def key(self) -> CallKey:
        """The id of the call: this block itself, or the call that it answers."""
        return self.round, self.tool_use_id or ""

    @property
    def is_call(self) -> bool:
        """True for a tool_use whose input is complete. Such a call has exactly one result in the end."""
        return self.type == TOOL_USE and not self.interrupted


def author_of(blocks: Sequence[Block]) -> str | None:
    """The author of a message, if that is not the owner."""
    notes = blocks[0].notes if blocks else None
    author: str | None = json.loads(notes).get(AUTHOR) if notes is not None else None
    return author


def caller_of(block: Block) -> str | None:
    """Returns the id of the server call, a program, that made this call. None for calls of the model."""
    if block.data is None or '"caller"' not in block.data:
        return None
    members = json.loads(block.data)
    item = members.get("item")
    caller = members.get("caller") or (item.get("caller") if isinstance(item, dict) else None)
    return (caller.get("tool_id") or caller.get("caller_id")) if isinstance(caller, dict) else None
