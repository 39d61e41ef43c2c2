"""Block kinds: one table of how every part of the system treats each type of block.

To add a kind, add its row here. tests/unit/test_kinds.py then fails for each client, dialect and provider that does not
know it. Providers also send types that have no row: `kind_of` gives them a row of their own, and they are kept as they
came.
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
SERVER_RESULT = "_tool_result"  # how the types of results end that a provider's own tools return
IMAGE = "image"
DOCUMENT = "document"
PROVIDER_SUMMARY = "compaction"  # written by a provider that makes the conversation shorter by itself
SUMMARY = "summary"  # of the turns before, if they are too long for the model
SHORTENED = "shortened"  # which earlier tool results are sent shortened from there on
USER_TEXT = "user_text"  # from the user, while the turn ran
REPORT = "report"  # the outcome of a call that continued in the background after its turn had continued
VERDICT = "verdict"  # on an output that a structured turn's model wrote as text

Family = Literal["prose", "thought", "call", "server_call", "result", "server_result", "file", "steer", "note", "other"]
# `in_place`: where it is, under the role of its turn. `after_call`: by the user's side, behind the call it answers.
# `as_user_text`: by the user's side, behind its round. `for_history`: instead of the turns it summarises.
Sent = Literal["in_place", "after_call", "as_user_text", "for_history", "never"]
Shown = Literal["prose", "thought", "hidden_thought", "call", "inside_call", "file", "user_text", "note", "raw"]
Size = Literal["none", "text", "text_and_data", "text_and_files", "one_file"]


@dataclass(frozen=True, slots=True)
class BlockKind:
    """One row of the table: how a type of block is treated.

    `streams` is the member of the block's JSON object that arrives piece by piece; without one the block arrives
    whole. The log has `after_seal` blocks behind `round_stop`: they are written once the model's reply is sealed.
    `sent` is where later model requests carry the block, `shown` how clients show it, `size` what counts when the
    length of a request is estimated. A `portable` block is sent to another provider too, without its `data`.
    `cacheable` blocks may carry a cache mark of Anthropic's. `guarded` is the guards' name for the text of the model.
    Blocks `with_turn_ids` name turns in their data, which a copy of the chat changes.
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
    # The call has its one result already, so a provider takes no second one.
    BlockKind(REPORT, "note", after_seal=True, sent="as_user_text", shown="note", size="text"),
    # Sent only if the output was not accepted.
    BlockKind(VERDICT, "note", after_seal=True, sent="as_user_text", shown="note"),
)
KINDS: Mapping[str, BlockKind] = {kind.name: kind for kind in _ROWS}

_SERVER_RESULT = BlockKind(SERVER_RESULT, "server_result")
_OTHER = BlockKind("", "other")


def kind_of(type: str) -> BlockKind:
    """The row of this type of block. A type without one gets a new row: providers invent types."""
    if known := KINDS.get(type):
        return known
    return replace(_SERVER_RESULT if type.endswith(SERVER_RESULT) else _OTHER, name=type)


def _names_of(*families: Family) -> frozenset[str]:
    return frozenset(kind.name for kind in _ROWS if kind.family in families)


CALLS = _names_of("call", "server_call")
SERVER_CALLS = _names_of("server_call")
THOUGHTS = _names_of("thought")
FILES = _names_of("file")
# Their `data` may name uploads. In this order an index has them.
WITH_FILES = (*(kind.name for kind in _ROWS if kind.family == "file"), TOOL_RESULT)
STREAMED_MEMBERS: Mapping[str, str] = {kind.name: kind.streams for kind in _ROWS if kind.streams is not None}
STEERED = frozenset({USER_TEXT, REPORT})  # what a steer becomes: the model is called because of it
AFTER_SEAL = frozenset(kind.name for kind in _ROWS if kind.after_seal)
# Sent in another place or form than their own, or not at all.
NOT_SENT_IN_PLACE = frozenset(kind.name for kind in _ROWS if kind.sent != "in_place")
# Written after the round's usage was known, and part of the next request.
ADDED_TO_REQUEST = frozenset(kind.name for kind in _ROWS if kind.after_seal and kind.sent != "never")
PORTABLE = frozenset(kind.name for kind in _ROWS if kind.portable)
CACHEABLE = frozenset(kind.name for kind in _ROWS if kind.cacheable)
