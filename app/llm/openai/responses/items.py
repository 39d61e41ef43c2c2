"""Blocks out of the items of a Responses answer. Pure.

An item that only its provider understands is kept whole, as its bytes, in the `data` of a block that is marked as ours:
what goes back is what came. A tool that runs at the provider is a call and a result, whether it was one item or two.
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

# Which item goes on where none has begun.
_UNANNOUNCED = {
    "refusal": "message",
    "summary": "reasoning",
    "text": "message",
    "thought": "reasoning",
}
# Members of an item that say what a tool of the provider was asked.
_INPUTS = ("action", "arguments", "code", "operation", "queries", "prompt", "revised_prompt")
# What is the same in every call, and has a place of its own.
_OF_CALLS = frozenset({"arguments", "call_id", "id", "input", "name", "status", "type"})


class _Awaited(NamedTuple):
    """A call whose result is an item of its own, and the thought that led to both."""

    stem: str
    id: str | None
    thought: str | None


class Items:
    """One answer. `seed` makes the ids of calls that come without one."""

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
            _leave(before, parts)
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
            case _:  # opened when there is something to say
                pass
        return item

    def say(self, place: int, member: str, text: str, parts: list[Part]) -> None:
        """More of an item that has begun; `member` is where in it."""
        if not text or (item := self._saying(place, member, parts)) is None:
            return
        item.said.setdefault(member, []).append(text)
        parts.append(BlockText(item.key, _escaped(text) if item.kind == CUSTOM else text))

    def annotate(self, place: int, member: str, annotation: Raw, parts: list[Part]) -> None:
        if item := self._saying(place, member, parts):
            item.annotated[member] = item.annotated.get(member, 0) + 1
            parts += _own(item.key, "annotations", annotation, append=True)

    def close(self, place: int, raw: Raw, parts: list[Part]) -> None:
        """The item as it is at its end: what of it nobody has said is said now."""
        raw, known = _storable(raw), read_item(raw)
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
                asked = self._awaited_by(known)
                self._tell(item.key, f"{stem_of(item.kind)}{SERVER_RESULT}", raw, parts, asked.id, asked.thought)
            case _:
                self._tell(item.key, f"openai_{item.kind}", raw, parts, None, self._thought)
        item.open = False

    def end(self, output: Iterable[Raw], parts: list[Part]) -> None:
        """Nothing more comes. `output` are all items as they are at the end, where the server says it."""
        if not self._items or any(item.open for item in self._items.values()):
            for place, raw in enumerate(output):
                if place not in self._items or self._items[place].open:
                    self.close(place, raw, parts)
        for item in self._items.values():
            _leave(item, parts)

    # --- what is said, piece by piece ---------------------------------------------------------------------------

    def _saying(self, place: int, member: str, parts: list[Part]) -> Item | None:
        """The open item at `place`, turned to `member`."""
        item = self._items.get(place) or self._unannounced(place, member, parts)
        if item is None or not item.open:
            return None
        if member != item.saying:
            self._turn_to(item, member, parts)
        return item

    def _unannounced(self, place: int, member: str, parts: list[Part]) -> Item | None:
        """A call is nothing without its name, which comes with its end."""
        kind = _UNANNOUNCED.get(member.partition(" ")[0])
        return self.open(place, Raw(to_json({"type": kind}).encode()), parts) if kind else None

    def _turn_to(self, item: Item, member: str, parts: list[Part]) -> None:
        """Pieces of a message are blocks of their own, those of a thought are parted by a blank line."""
        if item.kind == "message":
            if item.saying is not None:
                parts.append(BlockClosed(item.key))
                item.key = self._take_key()
            self.refused = self.refused or member.startswith("refusal")
            parts.append(BlockOpened(item.key, TEXT))
        elif item.saying is not None:
            parts.append(BlockText(item.key, "\n\n"))
        item.saying = member

    def _catch_up(self, item: Item, member: str, text: str, parts: list[Part]) -> None:
        said = "".join(item.said.get(member, ()))
        if text.startswith(said):
            self.say(item.place, member, text[len(said) :], parts)

    # --- how items end -------------------------------------------------------------------------------------------

    def _close_message(self, item: Item, known: KnownItem, parts: list[Part]) -> None:
        for number, piece in enumerate(known.content or ()):
            member = f"refusal {number}" if piece.refusal else f"text {number}"
            self._catch_up(item, member, piece.refusal or piece.text or "", parts)
            if item.saying == member:
                for annotation in (piece.annotations or [])[item.annotated.get(member, 0) :]:
                    parts += _own(item.key, "annotations", annotation, append=True)
                if known.phase:
                    parts += _own(item.key, "phase", known.phase)
        if item.saying is not None:
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
        extras = other_members(members_of(raw), _OF_CALLS)
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
        asked = {name: members[name] for name in _INPUTS if name in members}
        self._catch_up(item, "input", _as_json(known.arguments if isinstance(known.arguments, str) else asked), parts)
        if item.kind in AWAITED:
            self._awaited.append(_Awaited(stem_of(item.kind), item.id, self._thought))
            parts += (BlockData(item.key, "item", raw), *_bound(item.key, self._thought), BlockClosed(item.key))
        else:
            parts.append(BlockClosed(item.key))
            self._tell(self._take_key(), f"{stem_of(item.kind)}{SERVER_RESULT}", raw, parts, item.id, self._thought)

    def _tell(
        self, key: int, type: str, raw: Raw, parts: list[Part], tool_use_id: str | None, thought: str | None
    ) -> None:
        """A block that holds an item and says nothing else."""
        named = {"tool_use_id": tool_use_id} if tool_use_id else {}
        shell = to_json({"type": type, **named, "provider": PROVIDER, "item": raw})
        parts += (BlockOpened(key, type, shell, "", tool_use_id), *_bound(key, thought), BlockClosed(key))

    # --- ids and keys --------------------------------------------------------------------------------------------

    def _id_of(self, known: KnownItem) -> str:
        """By which a call is answered; nothing else may have it."""
        id = known.call_id or known.id
        if id is None or (id in self._ids and not known.type.endswith("_output")):
            id = generated_call_id(self._seed, len(self._ids))
        self._ids.add(id)
        return id

    def _awaited_by(self, known: KnownItem) -> _Awaited:
        """The call that an output belongs to: the one it names, else the last one of its kind."""
        same = [call for call in self._awaited if known.call_id in {call.id, None} and call.stem == stem_of(known.type)]
        return same[-1] if same else _Awaited(known.type, known.call_id, self._thought)

    def _take_key(self) -> int:
        self._next_key += 1
        return self._next_key - 1


def _leave(item: Item, parts: list[Part]) -> None:
    """An item of whose end nothing is said: what is whole is closed, the rest was cut."""
    said_something = item.role == "message" and item.saying is not None
    if item.open and (said_something or (item.role == "call" and is_object(item.all_said))):
        parts.append(BlockClosed(item.key))
        item.open = False


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value or {})


def _bound(key: int, thought: str | None) -> list[Part]:
    """To the thought that led to it: without that, the server does not take an item back."""
    return [BlockData(key, "thought", thought)] if thought else []


def _own(key: int, field: str, value: Any, *, append: bool = False) -> tuple[Part, Part]:
    """News that only this adapter can send back."""
    return BlockData(key, "provider", PROVIDER), BlockData(key, field, value, append)


def _escaped(text: str) -> str:
    """As a part of a JSON string."""
    return to_json(storable(text))[1:-1]


def _storable(raw: Raw) -> Raw:
    return Raw(decode_text(raw).encode())
