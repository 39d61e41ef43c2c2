"""Blocks: the pieces a turn is made of."""

from dataclasses import dataclass
from typing import Literal

TEXT = "text"
THINKING = "thinking"
TOOL_USE = "tool_use"
TOOL_RESULT = "tool_result"
IMAGE = "image"
DOCUMENT = "document"
SUMMARY = "summary"  # of the turns before, where they are too long for the model
SHORTENED = "shortened"  # which earlier tool results are sent shortened from there on
USER_TEXT = "user_text"  # what the user said while the turn ran
VERDICT = "verdict"  # on an output that a structured turn's model wrote as text

READ_RESULT = "read_result"  # the tool that reads what was left out of a result

# Calls of tools that run at the provider. Their results are blocks of further types, which end alike.
SERVER_TOOL_USE = "server_tool_use"
SERVER_CALLS = frozenset({SERVER_TOOL_USE, "mcp_tool_use"})
CALLS = SERVER_CALLS | {TOOL_USE}
SERVER_RESULT = "_tool_result"

# Blocks whose content arrives piece by piece; every other type arrives whole.
STREAMED = CALLS | {TEXT, THINKING, "compaction"}

# What is known with a verdict, as its `data`: whether the output was right.
TAKEN, NOT_TAKEN = '{"type":"verdict","taken":true}', '{"type":"verdict","taken":false}'

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
