"""Blocks: the parts of a turn."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnstream.domain.kinds import TOOL_USE

READ_RESULT = "read_result"  # the tool that reads the omitted part of a result

# The `data` of a verdict on an output.
ACCEPTED, REJECTED = '{"type":"verdict","taken":true}', '{"type":"verdict","taken":false}'

# The member that names the author of a message, in the notes of its first block; missing if the owner is the author.
AUTHOR = "author"

# The result text of a call whose turn ended before the call; {} is the turn's stop reason.
CUT_SHORT = "This call has no result: the turn ended ({})."


# The round and the id of a call. The id alone is not enough, because a later round may use it again.
CallKey = tuple[int, str]


@dataclass(frozen=True, slots=True)
class PreliminaryOutput:
    """The output that a running tool has returned so far. `data` is a JSON value for clients."""

    round: int
    tool_use_id: str
    name: str
    text: str
    data: Any = None

    @property
    def key(self) -> CallKey:
        """The key of the running call."""
        return self.round, self.tool_use_id


CallState = Literal["started", "settled", "unknown"]


@dataclass(frozen=True, slots=True)
class Block:
    """One closed block, as in its row.

    `text` is the streamed text (prose, thinking, or the JSON text of a tool input) or, for a tool_result, the returned
    text. `data` is the provider's own JSON object for the block, with the streamed member in its initial state; for a
    tool_result, `data` is the layout (turnstream.domain.results). It is None if `text` is the whole block. `attempt` is
    the attempt that wrote the block. `notes` is a JSON object of this server about a tool_result (truncated, tried
    again, answered by another tool) or a message. `client_data` is JSON text that a tool returns for clients. Model
    requests contain neither `notes` nor `client_data`.
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
        """The key of this call, or of the call that this block answers."""
        return self.round, self.tool_use_id or ""

    @property
    def is_call(self) -> bool:
        """True for a tool_use with a complete input. Such a call eventually has exactly one result."""
        return self.type == TOOL_USE and not self.interrupted


def author_of(blocks: Sequence[Block]) -> str | None:
    """Returns the author of the message that has these blocks; None for the owner."""
    notes = blocks[0].notes if blocks else None
    author: str | None = json.loads(notes).get(AUTHOR) if notes is not None else None
    return author


def caller_of(block: Block) -> str | None:
    """Returns the id of the server call (a program) that made this call; None if the model made the call."""
    if block.data is None or '"caller"' not in block.data:
        return None
    members = json.loads(block.data)
    item = members.get("item")
    caller = members.get("caller") or (item.get("caller") if isinstance(item, dict) else None)
    return (caller.get("tool_id") or caller.get("caller_id")) if isinstance(caller, dict) else None
