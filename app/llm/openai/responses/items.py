"""Blocks from the items of a Responses answer. Pure.

An item that only its provider understands is kept as its bytes in the `data` of a block, which is marked with
`provider`, and goes back as it came. A tool that runs at the provider becomes a call and a result.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import Raw

from app.domain.kinds import SERVER_RESULT, SERVER_TOOL_USE, TEXT, THINKING, TOOL_USE
from app.kit.text import storable
from app.llm.conversation.translation import UNNAMED, generated_call_id
from app.llm.openai.responses.item_types import AWAITED, CUSTOM, Item, KnownItem, read_item, stem_of
from app.llm.provider import BlockClosed, BlockData, BlockOpened, BlockText, Part
from app.llm.raw_json import decode_text, is_object, members_of, other_members, to_json

PROVIDER = "openai-responses"

# The item that a delta begins where none is open.
_UNANNOUNCED = {
    "refusal": "message",
    "summary": "reasoning",
    "text": "message",
    "thought": "reasoning",
}
# Members of an item that are the input of a provider's tool.
_INPUTS = ("action", "arguments", "code", "operation", "queries", "prompt", "revised_prompt")
# Members of a call that its block has.
_CALL_MEMBERS = frozenset({"arguments", "call_id", "id", "input", "name", "status", "type"})


class _Awaited(NamedTuple):
    """A call whose result is an item of its own, and the thought that led to both."""

    stem: str
    id: str | None
    thought: str | None


class Items:
    """The items of one answer. `seed` makes ids for calls without one."""

    def __init__(self, seed: bytes) -> None:
        self.called = False
        self.refused = False
        self._seed = seed
        self._items: dict[int, Item] = {}
        self._ids: set[str] = set()
        self._next_key = 0
        self._thought: str | None = None
        self._awaited: list[_Awaited] = []

    def open(self, place: int, raw: Raw, parts: list[Part]) -> Item:
        known = read_item(raw)
        if before := self._items.get(place):
            _abandon(before, parts)
        item = self._items[place] = Item(known.type, place, self._id_of(known), self._take_key())
        match item.role:
            case "thought":
                shell = {"type": THINKING, "thinking": "", "signature": "", "provider": PROVIDER}
                parts.append(BlockOpened(item.key, THINKING, to_json(shell)))
            case "call":
                self.called = True
                begun = '{"input":"' if item.kind == CUSTOM else ""
                parts.append(BlockOpened(item.key, TOOL_USE, None, begun, item.id, known.name or UNNAMED))
            case "server call":
                name = known.name or stem_of(item.kind)
                called = {"type": SERVER_TOOL_USE, "id": item.id, "name": name, "input": {}, "provider": PROVIDER}
                parts.append(BlockOpened(item.key, SERVER_TOOL_USE, to_json(called), "", item.id, name))
            case _:  # opened with its first delta, or at its end
                pass
        return item

    def append(self, place: int, member: str, text: str, parts: list[Part]) -> None:
        """Adds to a member of an item."""
        if not text or (item := self._open_at(place, member, parts)) is None:
            return
        item.streamed.setdefault(member, []).append(text)
        # The input of a custom tool is text; its block has it as a string in JSON.
        parts.append(BlockText(item.key, to_json(storable(text))[1:-1] if item.kind == CUSTOM else text))

    def annotate(self, place: int, member: str, annotation: Raw, parts: list[Part]) -> None:
        if item := self._open_at(place, member, parts):
            item.annotated[member] = item.annotated.get(member, 0) + 1
            parts += _own(item.key, "annotations", annotation, append=True)

    def close(self, place: int, raw: Raw, parts: list[Part]) -> None:
        """Completes an item by its final form: text that was not streamed is added now."""
        known = read_item(raw)
        raw = Raw(decode_text(raw).encode())  # without the bytes that cannot be stored
        item = self._items.get(place)
        if item is None or item.kind != known.type or not item.open:
            item = self.open(place, raw, parts)
        match item.role:
            case "message":
                self._close_message(item, known, parts)
            case "thought":
                self._close_thought(item, known, raw, parts)
            case "call":
                self._close_call(item, known, raw, parts)
            case "server call":
                self._close_server_call(item, known, raw, parts)
            case "output":
                # Its call is the one that it names, else the last one of its kind.
                stem = stem_of(item.kind)
                calls = [call for call in self._awaited if call.stem == stem and known.call_id in {call.id, None}]
                call = calls[-1] if calls else _Awaited(stem, known.call_id, self._thought)
                self._add_whole(item.key, f"{stem}{SERVER_RESULT}", raw, parts, call.id, call.thought)
            case _:
                self._add_whole(item.key, f"openai_{item.kind}", raw, parts, None, self._thought)
        item.open = False

    def end(self, output: Iterable[Raw], parts: list[Part]) -> None:
        """Closes all items. `output` has their final forms, if the server sent it."""
        if not self._items or any(item.open for item in self._items.values()):
            for place, raw in enumerate(output):
                if place not in self._items or self._items[place].open:
                    self.close(place, raw, parts)
        for item in self._items.values():
            _abandon(item, parts)

    def _open_at(self, place: int, member: str, parts: list[Part]) -> Item | None:
        """Returns the open item at `place`, with `member` as its present one."""
        item = self._items.get(place)
        if item is None and (kind := _UNANNOUNCED.get(member.partition(" ")[0])):
            # A server may leave out the event that begins an item. A call cannot begin so: it has no name yet.
            item = self.open(place, Raw(to_json({"type": kind}).encode()), parts)
        if item is None or not item.open:
            return None
        if member == item.member:
            return item
        # Each piece of a message begins a block; pieces of a thought are divided by a blank line in one block.
        if item.kind == "message":
            if item.member is not None:
                parts.append(BlockClosed(item.key))
                item.key = self._take_key()
            self.refused = self.refused or member.startswith("refusal")
            parts.append(BlockOpened(item.key, TEXT))
        elif item.member is not None:
            parts.append(BlockText(item.key, "\n\n"))
        item.member = member
        return item

    def _catch_up(self, item: Item, member: str, text: str, parts: list[Part]) -> None:
        """Adds the rest of the final text. If the streamed text differs from it, what clients have seen stays."""
        streamed = "".join(item.streamed.get(member, ()))
        if text.startswith(streamed):
            self.append(item.place, member, text[len(streamed) :], parts)

    def _close_message(self, item: Item, known: KnownItem, parts: list[Part]) -> None:
        for number, piece in enumerate(known.content or ()):
            member = f"refusal {number}" if piece.refusal else f"text {number}"
            self._catch_up(item, member, piece.refusal or piece.text or "", parts)
            if item.member == member:
                for annotation in (piece.annotations or [])[item.annotated.get(member, 0) :]:
                    parts += _own(item.key, "annotations", annotation, append=True)
                if known.phase:
                    parts += _own(item.key, "phase", known.phase)
        if item.member is not None:
            parts.append(BlockClosed(item.key))

    def _close_thought(self, item: Item, known: KnownItem, raw: Raw, parts: list[Part]) -> None:
        for kind, pieces in (("summary", known.summary), ("thought", known.content)):
            for number, piece in enumerate(pieces or ()):
                self._catch_up(item, f"{kind} {number}", piece.text or "", parts)
        self._thought = item.id
        parts.append(BlockData(item.key, "signature", f"{PROVIDER}:{item.id}"))
        parts.append(BlockData(item.key, "item", raw))
        parts.append(BlockClosed(item.key))

    def _close_call(self, item: Item, known: KnownItem, raw: Raw, parts: list[Part]) -> None:
        extras = other_members(members_of(raw), _CALL_MEMBERS)
        if item.kind == CUSTOM:
            self._catch_up(item, "input", known.input or "", parts)
            parts.append(BlockText(item.key, '"}'))
            extras["type"] = Raw(to_json(CUSTOM).encode())
        else:
            self._catch_up(item, "input", _as_json(known.arguments), parts)
        if extras:
            parts += _own(item.key, "item", extras)
        if known.status != "incomplete":
            parts.append(BlockClosed(item.key))

    def _close_server_call(self, item: Item, known: KnownItem, raw: Raw, parts: list[Part]) -> None:
        members = other_members(members_of(raw), ())
        inputs = {name: members[name] for name in _INPUTS if name in members}
        self._catch_up(item, "input", _as_json(known.arguments if isinstance(known.arguments, str) else inputs), parts)
        if item.kind in AWAITED:
            self._awaited.append(_Awaited(stem_of(item.kind), item.id, self._thought))
            parts += (BlockData(item.key, "item", raw), *_bound_to(item.key, self._thought), BlockClosed(item.key))
        else:
            parts.append(BlockClosed(item.key))
            self._add_whole(
                self._take_key(), f"{stem_of(item.kind)}{SERVER_RESULT}", raw, parts, item.id, self._thought
            )

    def _add_whole(
        self, key: int, type: str, raw: Raw, parts: list[Part], tool_use_id: str | None, thought: str | None
    ) -> None:
        """Adds a block that holds an item and has no text."""
        named = {"tool_use_id": tool_use_id} if tool_use_id else {}
        shell = to_json({"type": type, **named, "provider": PROVIDER, "item": raw})
        parts += (BlockOpened(key, type, shell, "", tool_use_id), *_bound_to(key, thought), BlockClosed(key))

    def _id_of(self, known: KnownItem) -> str:
        """Returns the id by which a call is answered, unique in the answer."""
        id = known.call_id or known.id
        if id is None or (id in self._ids and not known.type.endswith("_output")):
            id = generated_call_id(self._seed, len(self._ids))
        self._ids.add(id)
        return id

    def _take_key(self) -> int:
        self._next_key += 1
        return self._next_key - 1


def _abandon(item: Item, parts: list[Part]) -> None:
    """Closes an item whose end the server did not send, if it is complete. Any other was cut."""
    has_text = item.role == "message" and item.member is not None
    if item.open and (has_text or (item.role == "call" and is_object(item.all_text))):
        parts.append(BlockClosed(item.key))
        item.open = False


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value or {})


def _bound_to(key: int, thought: str | None) -> list[Part]:
    """Names the thought that led to an item: the server refuses the item without that thought."""
    return [BlockData(key, "thought", thought)] if thought else []


def _own(key: int, field: str, value: Any, *, append: bool = False) -> tuple[Part, Part]:
    """Sets a member that only this adapter can send back."""
    return BlockData(key, "provider", PROVIDER), BlockData(key, field, value, append)
