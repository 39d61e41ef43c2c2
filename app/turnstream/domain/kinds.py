"""Block kinds: one table with the rules of every part of the system for each type of block.

To add a kind, add its row here. tests/unit/test_kinds.py then fails for each client, dialect and provider without rules
for the kind. Providers also send types without a row: `kind_of` makes rows for these types.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

TEXT = "text"
THINKING = "thinking"
REDACTED_THINKING = "redacted_thinking"
TOOL_USE = "tool_use"
TOOL_RESULT = "tool_result"
SERVER_TOOL_USE = "server_tool_use"
MCP_TOOL_USE = "mcp_tool_use"
SERVER_RESULT = "_tool_result"  # the end of the types of results of a provider's own tools
IMAGE = "image"
DOCUMENT = "document"
PROVIDER_SUMMARY = "compaction"  # the summary of a provider that compacts by itself
SUMMARY = "summary"  # a summary of earlier turns that are too long for the model
SHORTENED = "shortened"  # the range of earlier tool results that later requests contain in part
USER_TEXT = "user_text"  # a message of the user to the running turn
REPORT = "report"  # the outcome of a background call, after its turn had continued
VERDICT = "verdict"  # the verdict on an output that the model wrote as text

Family = Literal["prose", "thought", "call", "server_call", "result", "server_result", "file", "steer", "note", "other"]
# `in_place`: at the position of the block, in the role of its turn. `after_call`: as the user's content, behind the
# call that the block answers. `as_user_text`: as the user's content, behind the round. `for_history`: replaces the
# summarised turns.
Sent = Literal["in_place", "after_call", "as_user_text", "for_history", "never"]
Shown = Literal["prose", "thought", "hidden_thought", "call", "inside_call", "file", "user_text", "note", "raw"]
Size = Literal["none", "text", "text_and_data", "text_and_files", "one_file"]


@dataclass(frozen=True, slots=True)
class BlockKind:
    """One row of the table: the rules for a type of block.

    `streams` is the member of the block's JSON object that arrives in pieces; without this member the block arrives
    whole. Blocks `after_seal` come behind `round_stop` in the log: the server writes these after the seal of the
    model's reply. `sent` is the position of the block in later model requests, `shown` its form in clients, `size` the
    part that counts in the estimated length of a request. Requests to another provider contain a `portable` block
    without its `data`. `cacheable` blocks may have a cache mark of Anthropic. `guarded` is the guards' name for the
    text of the model. Blocks `with_turn_ids` have ids of turns in their data; a copy of the chat changes these ids.
    """

    name: str
    family: Family
    streams: str | None = None
    after_seal: bool = False
    sent: Sent = "in_place"
    shown: Shown = "raw"
    size: Size = "text_and_data"
    portable: bool = False
    cacheable: bool = False
    guarded: Literal["text", "thinking"] | None = None
    with_turn_ids: bool = False


_ROWS = (
    BlockKind(TEXT, "prose", streams="text", shown="prose", portable=True, cacheable=True, guarded="text"),
    BlockKind(THINKING, "thought", streams="thinking", shown="thought", size="text", guarded="thinking"),
    BlockKind(REDACTED_THINKING, "thought", shown="hidden_thought"),
    BlockKind(TOOL_USE, "call", streams="input", shown="call", portable=True, cacheable=True),
    BlockKind(SERVER_TOOL_USE, "server_call", streams="input", shown="call", cacheable=True),
    BlockKind(MCP_TOOL_USE, "server_call", streams="input", shown="call"),
    BlockKind(
        TOOL_RESULT,
        "result",
        after_seal=True,
        sent="after_call",
        shown="inside_call",
        size="text_and_files",
        cacheable=True,
    ),
    BlockKind(IMAGE, "file", shown="file", size="one_file", cacheable=True),
    BlockKind(DOCUMENT, "file", shown="file", cacheable=True),
    BlockKind(PROVIDER_SUMMARY, "other", streams="content"),
    BlockKind(
        SUMMARY,
        "note",
        streams="text",
        sent="for_history",
        shown="note",
        size="none",
        guarded="text",
        with_turn_ids=True,
    ),
    BlockKind(SHORTENED, "note", after_seal=True, sent="never", shown="note", size="none", with_turn_ids=True),
    BlockKind(USER_TEXT, "steer", after_seal=True, sent="as_user_text", shown="user_text"),
    # The call already has its only result, and providers accept no second result.
    BlockKind(REPORT, "note", after_seal=True, sent="as_user_text", shown="note", size="text"),
    # Requests contain only the verdict on a rejected output.
    BlockKind(VERDICT, "note", after_seal=True, sent="as_user_text", shown="note"),
)
KINDS: Mapping[str, BlockKind] = {kind.name: kind for kind in _ROWS}

_SERVER_RESULT = BlockKind(SERVER_RESULT, "server_result")
_OTHER = BlockKind("", "other")


def kind_of(type: str) -> BlockKind:
    """The row of this type of block. An unknown type gets a new row, because providers invent types."""
    if known := KINDS.get(type):
        return known
    return replace(_SERVER_RESULT if type.endswith(SERVER_RESULT) else _OTHER, name=type)


def _names_of(*families: Family) -> frozenset[str]:
    return frozenset(kind.name for kind in _ROWS if kind.family in families)


CALLS = _names_of("call", "server_call")
SERVER_CALLS = _names_of("server_call")
THOUGHTS = _names_of("thought")
FILES = _names_of("file")
# The `data` of these blocks may name uploads. An index has the types in this order.
WITH_FILES = (*(kind.name for kind in _ROWS if kind.family == "file"), TOOL_RESULT)
STREAMED_MEMBERS: Mapping[str, str] = {kind.name: kind.streams for kind in _ROWS if kind.streams is not None}
STEERED = frozenset({USER_TEXT, REPORT})  # the blocks of an applied steer: each leads to a model call
AFTER_SEAL = frozenset(kind.name for kind in _ROWS if kind.after_seal)
# Requests contain these at another position, in another form, or not at all.
NOT_SENT_IN_PLACE = frozenset(kind.name for kind in _ROWS if kind.sent != "in_place")
# These blocks follow the usage of the round, and are part of the next request.
ADDED_TO_REQUEST = frozenset(kind.name for kind in _ROWS if kind.after_seal and kind.sent != "never")
PORTABLE = frozenset(kind.name for kind in _ROWS if kind.portable)
CACHEABLE = frozenset(kind.name for kind in _ROWS if kind.cacheable)
