"""Block kinds: a table that has, for each type of block, the rules that every part of the system follows.

To add a kind, add its row here. tests/unit/test_kinds.py then fails for each client, dialect and provider without rules
for the kind. Providers also send types that have no row: `kind_of` makes rows for these types.
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
SERVER_RESULT = "_tool_result"  # ends the block type of each result that a provider's own tool returns
IMAGE = "image"
DOCUMENT = "document"
PROVIDER_SUMMARY = "compaction"  # a summary that a provider makes when it compacts by itself
SUMMARY = "summary"  # a summary of earlier turns that are too long for the model
SHORTENED = "shortened"  # names the earlier tool results that later requests contain only in part
USER_TEXT = "user_text"  # a message that the user sent to the running turn
REPORT = "report"  # the outcome of a background call for which its turn did not wait
VERDICT = "verdict"  # the verdict on an output that the model wrote as text

Family = Literal["prose", "thought", "call", "server_call", "result", "server_result", "file", "steer", "note", "other"]
# The position of a block in model requests. `in_place`: its own position, in the role of its turn. `after_call`: in the
# user's content that follows the call that the block answers. `as_user_text`: in the user's content that follows the
# round. `for_history`: instead of the turns that the block summarises.
Sent = Literal["in_place", "after_call", "as_user_text", "for_history", "never"]
Shown = Literal["prose", "thought", "hidden_thought", "call", "inside_call", "file", "user_text", "note", "raw"]
Size = Literal["none", "text", "text_and_data", "text_and_files", "one_file"]


@dataclass(frozen=True, slots=True)
class BlockKind:
    """One row of the table: the rules for a type of block.

    `streams` is the member of the block's JSON object that arrives in pieces; None if the block arrives whole. The
    server writes a block with `after_seal` after it has sealed the model's reply, so in the log the block follows
    `round_stop`. `sent` is the position of the block in later model requests, `shown` its form in clients, `size` the
    part of the block that counts in the estimated length of a request. Requests to another provider contain a
    `portable` block without its `data`. A `cacheable` block may have one of Anthropic's cache marks. `guarded` is the
    name that guards use for text that the model wrote. The data of a block `with_turn_ids` contains ids of turns, which
    a copy of the chat changes.
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
    # A report is user text, because its call already has a result, and providers accept no second result.
    BlockKind(REPORT, "note", after_seal=True, sent="as_user_text", shown="note", size="text"),
    # Requests contain a verdict only if it rejects the output.
    BlockKind(VERDICT, "note", after_seal=True, sent="as_user_text", shown="note"),
)
KINDS: Mapping[str, BlockKind] = {kind.name: kind for kind in _ROWS}

_SERVER_RESULT = BlockKind(SERVER_RESULT, "server_result")
_OTHER = BlockKind("", "other")


def kind_of(type: str) -> BlockKind:
    """Returns the row for this type of block. An unknown type gets a new row, because providers invent types."""
    if known := KINDS.get(type):
        return known
    return replace(_SERVER_RESULT if type.endswith(SERVER_RESULT) else _OTHER, name=type)


def _names_of(*families: Family) -> frozenset[str]:
    return frozenset(kind.name for kind in _ROWS if kind.family in families)


CALLS = _names_of("call", "server_call")
SERVER_CALLS = _names_of("server_call")
THOUGHTS = _names_of("thought")
FILES = _names_of("file")
# The `data` of these blocks may name uploads. An index of the database names the types in this order.
WITH_FILES = (*(kind.name for kind in _ROWS if kind.family == "file"), TOOL_RESULT)
STREAMED_MEMBERS: Mapping[str, str] = {kind.name: kind.streams for kind in _ROWS if kind.streams is not None}
STEERED = frozenset({USER_TEXT, REPORT})  # the blocks of applied steers; a model call follows each of these blocks
AFTER_SEAL = frozenset(kind.name for kind in _ROWS if kind.after_seal)
# Requests contain blocks of these types at another position, in another form, or not at all.
NOT_SENT_IN_PLACE = frozenset(kind.name for kind in _ROWS if kind.sent != "in_place")
# The usage of a round does not include blocks of these types, but the next request contains these blocks.
ADDED_TO_REQUEST = frozenset(kind.name for kind in _ROWS if kind.after_seal and kind.sent != "never")
PORTABLE = frozenset(kind.name for kind in _ROWS if kind.portable)
CACHEABLE = frozenset(kind.name for kind in _ROWS if kind.cacheable)
