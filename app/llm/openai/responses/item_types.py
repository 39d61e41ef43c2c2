"""What the items of a Responses answer are, and what is read of one. Pure."""

from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

CUSTOM = "custom_tool_call"
PROGRAM = "program"  # calls tools of ours, and is answered after them

# Items that another item is the result of: that of a tool at the provider, or one that nobody here gives.
AWAITED = frozenset(
    {
        "apply_patch_call",
        "computer_call",
        "local_shell_call",
        "mcp_approval_request",
        PROGRAM,
        "shell_call",
        "tool_search_call",
    }
)
_STEMS = {PROGRAM: PROGRAM, "mcp_approval_request": "mcp_approval"}


class _Piece(Struct):
    """Of a message, a thought or its summary."""

    text: str | None = None
    refusal: str | None = None
    annotations: list[Raw] | None = None


class KnownItem(Struct):
    """What is read of an item; the rest is kept as it came."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    input: str | None = None
    status: str | None = None
    phase: str | None = None
    content: list[_Piece] | None = None
    summary: list[_Piece] | None = None


class _Barely(Struct):
    """What every item has."""

    type: str
    id: str | None = None


_known = msgspec.json.Decoder(KnownItem, strict=False)
_barely = msgspec.json.Decoder(_Barely)

Role = Literal["message", "thought", "call", "server call", "output", "other"]


class Item:
    """One that has begun. `place` is where in the answer it stands, `key` its present block."""

    __slots__ = ("annotated", "id", "key", "kind", "open", "place", "role", "said", "saying")

    def __init__(self, kind: str, place: int, id: str, key: int) -> None:
        self.kind = kind
        self.role = _role(kind)
        self.place = place
        self.id = id
        self.key = key
        self.open = True
        self.said: dict[str, list[str]] = {}
        self.saying: str | None = None
        self.annotated: dict[str, int] = {}

    @property
    def all_said(self) -> str:
        return "".join(text for pieces in self.said.values() for text in pieces)


def read_item(raw: Raw) -> KnownItem:
    try:
        return _known.decode(raw)
    except msgspec.ValidationError:  # a member is of a type that nobody has seen yet
        barely = _barely.decode(raw)
        return KnownItem(barely.type, barely.id)


def _role(kind: str) -> Role:
    match kind:
        case "message":
            return "message"
        case "reasoning":
            return "thought"
        case "function_call" | "custom_tool_call":
            return "call"
        case _ if kind in AWAITED or kind.endswith("_call"):
            return "server call"
        case _:
            return "output" if kind.endswith("_output") else "other"


def stem_of(type: str) -> str:
    """`web_search` of a `web_search_call`, `shell` of a `shell_call_output`."""
    return _STEMS.get(type) or type.removesuffix("_output").removesuffix("_call")
