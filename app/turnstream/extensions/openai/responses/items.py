"""Builds blocks from the items of a Responses answer. Pure.

An item that only the provider understands is stored as bytes in the `data` of a block, which has the mark `provider`,
and is sent back unchanged. The call of a provider's tool becomes two blocks, a call and a result.
"""

from collections import deque
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

from msgspec import Raw

from turnstream.domain.kinds import SERVER_RESULT, SERVER_TOOL_USE, TEXT, THINKING, TOOL_USE
from turnstream.extensions.openai.responses.item_types import AWAITED, CUSTOM, Item, KnownItem, read_item, stem_of
from turnstream.kit.text import storable
from turnstream.libraries.providers.raw_members import decode_text, other_members
from turnstream.llm.provider import UNNAMED, BlockClosed, BlockData, BlockOpened, BlockText, Part, generated_call_id
from turnstream.llm.raw_json import is_object, members_of, to_json

PROVIDER = "openai-responses"

# Maps a member to the type of the item that its delta starts if no item is open.
_UNANNOUNCED = {
    "refusal": "message",
    "summary": "reasoning",
    "text": "message",
    "thought": "reasoning",
}
# Members of an item that contain the input of a provider's tool.
_INPUTS = ("action", "arguments", "code", "operation", "queries", "prompt", "revised_prompt")
# Members of a call that its block contains.
_CALL_MEMBERS = frozenset({"arguments", "call_id", "id", "input", "name", "status", "type"})


class _Awaited(NamedTuple):
    """A call whose result is a separate item. `thought` is the id of the thought before the call."""

    stem: str
    id: str | None
    thought: str | None


class _Rest(NamedTuple):
    """The part of a final piece that was not streamed. `is_new` is set if no part of the piece was streamed."""

    text: str
    is_new: bool


class Items:
    """The items of one answer. Missing ids of calls are generated from `seed`. `offered` are the names of the request's
    tools, or None if the names are unknown.
    """

    def __init__(self, seed: bytes, offered: Set[str] | None = None) -> None:
        self.called = False
        self.refused = False
        self._seed = seed
        self._offered = offered
        self._places: list[int] = []  # for each block so far, the place of its item
        self._items: list[Item] = []
        self._by_place: dict[int, Item] = {}
        self._by_id: dict[str, Item] = {}
        self._announced: set[int] = set()  # places at which a piece was announced before its item
        self._ids: set[str] = set()
        self._next_key = 0
        self._thought: str | None = None
        self._awaited: list[_Awaited] = []

    def open(self, place: int, raw: Raw, parts: list[Part], *, implied: bool = False) -> Item:
        known = read_item(raw)
        if before := self._by_place.get(place):
            _abandon(before, parts)
        announces = place in self._announced
        self._announced.discard(place)
        item = Item(known.type, self._id_of(known), self._take_key(), place, announces=announces, implied=implied)
        if item.role != "call":
            self._release(parts, by_server=True)
        self._items.append(item)
        self._by_place[place] = item
        if known.id:
            self._by_id[known.id] = item
        match item.role:
            case "thought":
                shell = {"type": THINKING, "thinking": "", "signature": "", "provider": PROVIDER}
                self._add_opened(item, BlockOpened(item.key, THINKING, to_json(shell)), parts)
            case "call":
                begun = '{"input":"' if item.kind == CUSTOM else ""
                opened = BlockOpened(item.key, TOOL_USE, None, begun, item.id, known.name or UNNAMED)
                if self._offered is None or opened.name in self._offered:
                    self.called = True
                    self._add_opened(item, opened, parts)
                else:
                    item.held = [opened]
            case "server call":
                name = known.name or stem_of(item.kind)
                self._add_opened(item, _server_call(item.key, item.id, name), parts)
            case _:  # the block is opened by the first delta, or at the end of the item
                pass
        return item

    def announce(self, place: int, id: str | None) -> None:
        """Makes the next delta of the item begin a piece."""
        if item := self._find(place, id):
            item.announces = item.begins_piece = True
        else:
            self._announced.add(place)

    def end_piece(self, place: int, id: str | None) -> None:
        if item := self._find(place, id):
            item.piece_ended = True

    def append(self, place: int, id: str | None, member: str, number: int | None, text: str, parts: list[Part]) -> None:
        """Appends `text` to a member of an item."""
        if not text or (item := self._find_or_open(place, id, member, parts)) is None:
            return
        if item.role == "thought" and member == "text":
            member = "thought"  # Bedrock sends the thoughts of gpt-oss as texts
        begins = item.begins_piece or item.piece_ended or not (item.announces or number == item.number)
        if begins or member != item.member:
            self._begin_piece(item, member, parts)
        item.number = number
        self._append(item, text, parts if item.held is None else item.held)

    def annotate(self, place: int, id: str | None, number: int | None, annotation: Raw, parts: list[Part]) -> None:
        if (item := self._find_or_open(place, id, "text", parts)) and item.role == "message":
            if item.begins_piece or item.member is None:
                self._begin_piece(item, "text", parts)
                item.number = number
            item.annotated += 1
            parts += _own(item.key, "annotations", annotation, append=True)

    def close(self, place: int, raw: Raw, parts: list[Part]) -> None:
        """Completes an item by its final form, and adds text that was not streamed."""
        known = read_item(raw)
        item = self._find(place, known.id)
        if item is None or item.kind != known.type:
            item = self.open(place, raw, parts)
        self._complete(item, known, raw, parts)

    def _complete(self, item: Item, known: KnownItem, raw: Raw, parts: list[Part]) -> None:
        raw = Raw(decode_text(raw).encode())  # drops bytes that cannot be stored
        match item.role:
            case "message":
                self._close_message(item, known, parts)
            case "thought":
                self._close_thought(item, known, raw, parts)
            case "call":
                self._close_call(item, known, raw, parts if item.held is None else item.held)
            case "server call":
                self._close_server_call(item, known, raw, parts)
            case "output":
                # The result belongs to the call that it names, otherwise to the last call of the same type.
                stem = stem_of(item.kind)
                calls = [call for call in self._awaited if call.stem == stem and known.call_id in {call.id, None}]
                call = calls[-1] if calls else _Awaited(stem, known.call_id, self._thought)
                self._add_whole(item, item.key, f"{stem}{SERVER_RESULT}", raw, parts, call.id, call.thought)
            case _:
                self._add_whole(item, item.key, f"openai_{item.kind}", raw, parts, None, self._thought)
        item.open = False

    def end(self, output: Sequence[Raw], parts: list[Part]) -> None:
        """Closes all items. `output` has their final forms, if the server sent them. Items and final forms of one type
        are paired by their order, because places and ids may differ from the stream.
        """
        if not self._items or any(item.open for item in self._items):
            finals = [(read_item(raw), raw) for raw in output]
            received: dict[str, deque[Item]] = {}
            for kind in {known.type for known, _ in finals}:
                mine = [item for item in self._items if item.kind == kind]
                if len(mine) > sum(known.type == kind for known, _ in finals):
                    # vLLM announces a message at one place, and streams its text at another place.
                    mine = [item for item in mine if item.streamed or not item.open]
                received[kind] = deque(mine)
            for place, (known, raw) in enumerate(finals):
                item = received[known.type].popleft() if received[known.type] else self.open(place, raw, parts)
                if item.open:
                    self._complete(item, known, raw, parts)
        self._release(parts, by_server=False)
        for item in self._items:
            _abandon(item, parts)

    def _find(self, place: int, id: str | None) -> Item | None:
        """Returns the open item to which an event belongs. Some servers omit places; others change or repeat ids."""
        for item in (self._by_id.get(id or ""), self._by_place.get(place)):
            if item is not None and item.open:
                return item
        return None

    def _find_or_open(self, place: int, id: str | None, member: str, parts: list[Part]) -> Item | None:
        """Returns the open item to which a delta belongs. A server may omit the event that starts an item, so the delta
        may open it. A delta cannot open a call, because the name of the call is not known yet.
        """
        item, kind = self._find(place, id), _UNANNOUNCED.get(member)
        if item is not None and not (item.implied and kind not in {None, item.kind}):
            return item
        before = self._by_place.get(place)
        if kind is None or (before is not None and before.kind == kind):
            return None
        return self.open(place, Raw(to_json({"type": kind}).encode()), parts, implied=True)

    def _begin_piece(self, item: Item, member: str, parts: list[Part]) -> None:
        """Begins a piece: a block of a message, or a paragraph of a thought."""
        if item.role == "message":
            if item.member is not None:
                parts.append(BlockClosed(item.key))
                item.key = self._take_key()
            self.refused = self.refused or member == "refusal"
            self._add_opened(item, BlockOpened(item.key, TEXT), parts)
        elif item.role == "thought" and item.member is not None:
            parts.append(BlockText(item.key, "\n\n"))
        item.member = member
        item.begins_piece = item.piece_ended = False
        item.streamed.setdefault(member, []).append([])

    def _append(self, item: Item, text: str, parts: list[Part]) -> None:
        item.streamed[item.member or ""][-1].append(text)
        # The input of a custom tool is text; its block contains the text as a JSON string.
        parts.append(BlockText(item.key, to_json(storable(text))[1:-1] if item.kind == CUSTOM else text))

    def _catch_up(self, item: Item, member: str, rest: _Rest, parts: list[Part]) -> None:
        """Adds the rest of a final piece."""
        if rest.text:
            if item.member != member or (rest.is_new and item.streamed[member][-1]):
                self._begin_piece(item, member, parts)
            self._append(item, rest.text, parts)

    def _close_message(self, item: Item, known: KnownItem, parts: list[Part]) -> None:
        finals = [
            ("refusal" if piece.refusal else "text", text, piece)
            for piece in known.content or ()
            if (text := piece.refusal or piece.text)
        ]
        rests = {
            member: deque(_rests(item.pieces(member), [text for of, text, _ in finals if of == member]))
            for member in ("text", "refusal")
        }
        annotated = item.annotated
        for member, _, piece in finals:
            rest = rests[member].popleft()
            self._catch_up(item, member, rest, parts)
            annotations = piece.annotations or []
            if rest.text or piece is finals[-1][2]:  # the block of the piece is open
                for annotation in annotations[annotated:]:
                    parts += _own(item.key, "annotations", annotation, append=True)
                if known.phase:
                    parts += _own(item.key, "phase", known.phase)
            annotated = max(0, annotated - len(annotations))
        if item.member is not None:
            parts.append(BlockClosed(item.key))

    def _close_thought(self, item: Item, known: KnownItem, raw: Raw, parts: list[Part]) -> None:
        final = {"summary": known.summary or (), "thought": known.content or ()}
        finals = {member: [piece.text for piece in pieces if piece.text] for member, pieces in final.items() if pieces}
        if len(finals) == len(item.streamed) == 1:  # some servers stream the item's content as a summary
            finals = dict(zip(item.streamed, finals.values(), strict=True))
        for member, texts in finals.items():
            for rest in _rests(item.pieces(member), texts):
                self._catch_up(item, member, rest, parts)
        self._thought = item.id
        parts.append(BlockData(item.key, "signature", f"{PROVIDER}:{item.id}"))
        parts.append(BlockData(item.key, "item", raw))
        parts.append(BlockClosed(item.key))

    def _close_call(self, item: Item, known: KnownItem, raw: Raw, parts: list[Part]) -> None:
        extras = other_members(members_of(raw), _CALL_MEMBERS)
        if item.kind == CUSTOM:
            self._complete_input(item, known.input or "", parts)
            parts.append(BlockText(item.key, '"}'))
            extras["type"] = Raw(to_json(CUSTOM).encode())
        else:
            self._complete_input(item, _as_json(known.arguments), parts)
        if extras:
            parts += _own(item.key, "item", extras)
        if known.status != "incomplete":
            parts.append(BlockClosed(item.key))
            item.final = raw
            if item.by_server:
                self._add_result(item, known.name, raw, parts)

    def _release(self, parts: list[Part], *, by_server: bool) -> None:
        """Emits the held calls of tools that were not offered. If the server continues after such a call, it has run
        the tool itself (xAI reports its searches this way). A held call at the end of the answer is a mistake of the
        model.
        """
        for item in self._items:
            if item.held is None:
                continue
            (opened, *rest), item.held = item.held, None
            assert isinstance(opened, BlockOpened)
            if by_server:
                item.by_server = True
                opened = _server_call(item.key, item.id, opened.name or UNNAMED)._replace(text=opened.text)
            else:
                self.called = True
            self._add_opened(item, opened, parts)
            parts += rest
            if by_server and item.final is not None:
                self._add_result(item, opened.name, item.final, parts)

    def _add_result(self, item: Item, name: str | None, raw: Raw, parts: list[Part]) -> None:
        type = f"{name or UNNAMED}{SERVER_RESULT}"
        self._add_whole(item, self._take_key(), type, raw, parts, item.id, self._thought)

    def _complete_input(self, item: Item, text: str, parts: list[Part]) -> None:
        for rest in _rests(item.pieces("input"), [text]):
            self._catch_up(item, "input", rest, parts)

    def _close_server_call(self, item: Item, known: KnownItem, raw: Raw, parts: list[Part]) -> None:
        members = other_members(members_of(raw), ())
        inputs = {name: members[name] for name in _INPUTS if name in members}
        self._complete_input(item, _as_json(known.arguments if isinstance(known.arguments, str) else inputs), parts)
        if item.kind in AWAITED:
            self._awaited.append(_Awaited(stem_of(item.kind), item.id, self._thought))
            parts += (BlockData(item.key, "item", raw), *_bound_to(item.key, self._thought), BlockClosed(item.key))
        else:
            parts.append(BlockClosed(item.key))
            self._add_result(item, stem_of(item.kind), raw, parts)

    def _add_whole(
        self, item: Item, key: int, type: str, raw: Raw, parts: list[Part], tool_use_id: str | None, thought: str | None
    ) -> None:
        """Adds a block for an item without text."""
        named = {"tool_use_id": tool_use_id} if tool_use_id else {}
        shell = to_json({"type": type, **named, "provider": PROVIDER, "item": raw})
        self._add_opened(item, BlockOpened(key, type, shell, "", tool_use_id), parts)
        parts += (*_bound_to(key, thought), BlockClosed(key))

    def _add_opened(self, item: Item, opened: BlockOpened, parts: list[Part]) -> None:
        """Opens a block. If items that come later in the output already have blocks, the number of these blocks is
        stored: rows are in stream order, but items are sent back in the order of the output.
        """
        ahead = sum(place > item.place for place in self._places)
        self._places.append(item.place)
        parts.append(opened)
        if ahead:
            parts += _own(opened.key, "ahead", ahead)

    def _id_of(self, known: KnownItem) -> str:
        """Returns an id that is unique in the answer. The result of a call names this id."""
        id = known.call_id or known.id
        if id is None or (id in self._ids and not known.type.endswith("_output")):
            id = generated_call_id(self._seed, len(self._ids))
        self._ids.add(id)
        return id

    def _take_key(self) -> int:
        self._next_key += 1
        return self._next_key - 1


def _abandon(item: Item, parts: list[Part]) -> None:
    """Closes a message with text, or a call with complete input, that received no end event. Any other item was
    truncated and stays open.
    """
    has_text = item.role == "message" and item.member is not None
    if item.open and (has_text or (item.role == "call" and is_object("".join(item.pieces("input"))))):
        (parts if item.held is None else item.held).append(BlockClosed(item.key))
        item.open = False


def _rests(streamed: Sequence[str], finals: Sequence[str]) -> list[_Rest]:
    """Returns the rest of each final piece. If the final text contradicts the streamed text, clients keep the streamed
    text, and only additional pieces are added.
    """
    whole = "".join(streamed)
    rests: list[_Rest] = []
    if "".join(finals).startswith(whole):
        left = len(whole)
        for text in finals:
            rests.append(_Rest(text[left:], left == 0))
            left = max(0, left - len(text))
        return rests
    unseen = [text for text in finals if not any(text.startswith(piece) for piece in streamed)]
    added = unseen[len(unseen) - max(0, len(finals) - len(streamed)) :]
    return [_Rest(text if text in added else "", True) for text in finals]


def _server_call(key: int, id: str, name: str) -> BlockOpened:
    called = {"type": SERVER_TOOL_USE, "id": id, "name": name, "input": {}, "provider": PROVIDER}
    return BlockOpened(key, SERVER_TOOL_USE, to_json(called), "", id, name)


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value or {})


def _bound_to(key: int, thought: str | None) -> list[Part]:
    """Stores the id of the thought before an item, because the server refuses the item without this thought."""
    return [BlockData(key, "thought", thought)] if thought else []


def _own(key: int, field: str, value: Any, *, append: bool = False) -> tuple[Part, Part]:
    """Sets a member that only this adapter sends back."""
    return BlockData(key, "provider", PROVIDER), BlockData(key, field, value, append)
