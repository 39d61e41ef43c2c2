"""The item types of a Responses answer, and the decoder of items. Pure."""

from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from turnstream.llm.provider import Part

CUSTOM = "custom_tool_call"
FUNCTION = "function_call"
PROGRAM = "program"  # a program calls our tools; its own result follows the results of these tools

# Types of calls whose result is a separate item. The provider runs such a call, or expects a result that no tool here
# can return.
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
    """A piece of a message, of a thought or of its summary."""

    text: str | None = None
    refusal: str | None = None
    annotations: list[Raw] | None = None


class KnownItem(Struct):
    """The members of an item that are parsed. The bytes of the item are stored unchanged."""

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


class _MinimalItem(Struct):
    """The members of every item."""

    type: str
    id: str | None = None


_known = msgspec.json.Decoder(KnownItem, strict=False)

Role = Literal["message", "thought", "call", "server call", "output", "other"]


class Item:
    """A started item. `key` is the key of its current block, and `place` is its index in the output. `streamed` has the
    received pieces of each member (`text`, `refusal`, `thought`, `summary`, `input`). `member` is the current member,
    and `number` is the server's number of the current piece. `implied` is set if no event but a delta started the item.
    If a call names a tool that was not offered, `held` keeps the parts of the call, and `final` its final form, until
    it is known who runs the tool.

    Servers count pieces within the item, over the whole answer, or per delta (vLLM), so a number does not identify a
    piece. If the server announces pieces, each announcement begins a piece; otherwise, each new number begins a piece.
    """

    __slots__ = (
        "annotated",
        "announces",
        "begins_piece",
        "by_server",
        "final",
        "held",
        "id",
        "implied",
        "key",
        "kind",
        "member",
        "number",
        "open",
        "piece_ended",
        "place",
        "role",
        "streamed",
    )

    def __init__(
        self, kind: str, id: str, key: int, place: int, *, announces: bool = False, implied: bool = False
    ) -> None:
        self.kind = kind
        self.role = _role(kind)
        self.id = id
        self.key = key
        self.place = place
        self.implied = implied
        self.open = True
        self.streamed: dict[str, list[list[str]]] = {}
        self.member: str | None = None
        self.number: int | None = None
        self.announces = announces
        self.begins_piece = False
        self.piece_ended = False
        self.annotated = 0
        self.by_server = False
        self.held: list[Part] | None = None
        self.final: Raw | None = None

    def pieces(self, member: str) -> list[str]:
        return ["".join(texts) for texts in self.streamed.get(member, ())]


def read_item(raw: Raw) -> KnownItem:
    try:
        return _known.decode(raw)
    except msgspec.ValidationError:  # a member has an unknown type
        minimal = msgspec.json.decode(raw, type=_MinimalItem)
        return KnownItem(minimal.type, minimal.id)


def _role(kind: str) -> Role:
    match kind:
        case "message":
            return "message"
        case "reasoning":
            return "thought"
        case _ if kind in {FUNCTION, CUSTOM}:
            return "call"
        case _ if kind in AWAITED or kind.endswith("_call"):
            return "server call"
        case _:
            return "output" if kind.endswith("_output") else "other"


def stem_of(type: str) -> str:
    """Returns the name of the tool in an item type: `web_search` for a `web_search_call`, `shell` for a
    `shell_call_output`.
    """
    return _STEMS.get(type) or type.removesuffix("_output").removesuffix("_call")
