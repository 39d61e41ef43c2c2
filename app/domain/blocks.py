"""Blocks: the pieces a turn is made of."""

from dataclasses import dataclass
from typing import Literal

from app.domain.kinds import TOOL_USE

READ_RESULT = "read_result"  # the tool that reads what was left out of a result

# What is known with a verdict, as its `data`: whether the output was right.
ACCEPTED, REJECTED = '{"type":"verdict","taken":true}', '{"type":"verdict","taken":false}'

# The result of a call that the end of its turn cut short, by the turn's stop reason.
CUT_SHORT = "This call has no result: the turn ended ({})."

CallState = Literal["started", "settled", "unknown"]


@dataclass(frozen=True, slots=True)
class Block:
    """One closed block, as its row holds it.

    `text` is what was streamed: prose, thinking, or the JSON text of a tool input; for a tool_result what the tool
    said. `data` is the provider's own JSON object for the block, with the streamed member left as it began; for a
    tool_result how it is laid out (app/domain/results.py); None where `text` says it all. `attempt` is the attempt that
    wrote the block. `notes` are our own words about a tool_result (what was cut, tried again, answered by another
    tool), a JSON object that no provider sees.
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

    @property
    def is_call(self) -> bool:
        """True for a tool_use whose input is complete: a call that wants exactly one result."""
        return self.type == TOOL_USE and not self.interrupted
