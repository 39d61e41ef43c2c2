"""Parts become changes: one open block at a time, blocks closed whole, nothing the provider said lost."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.domain.blocks import Block
from app.domain.events import BlockStart
from app.domain.kinds import TEXT, TOOL_USE
from app.domain.rounds import merge_usage
from app.kit.text import storable
from app.llm.provider import (
    BlockClosed,
    BlockData,
    BlockOpened,
    BlockText,
    MessageDelta,
    MessageEnded,
    MessageStarted,
    Part,
    Unknown,
)
from app.llm.raw_json import is_object, members_of, to_json

# A str is text for the open block; a Block is that block, closed.
Change = BlockStart | str | Block | Unknown

_TRUNCATED = frozenset({"max_tokens", "model_context_window_exceeded"})
_items = msgspec.json.Decoder(list[msgspec.Raw] | None)


class Accumulator:
    """One model call. Feed it every batch; the attributes tell what is known of the message so far."""

    def __init__(self, round: int, attempt: int, first_index: int) -> None:
        self.started = False
        self.usage: Mapping[str, Any] = {}
        self.stop_reason: str | None = None
        self.request_id: str | None = None
        self.data: str | None = None
        self.ended = False
        self.unknown: list[Unknown] = []
        self._round = round
        self._attempt = attempt
        self._next_index = first_index
        self._queue: deque[_Building] = deque()
        self._by_key: dict[int, _Building] = {}
        self._open: _Building | None = None

    def feed(self, parts: Sequence[Part]) -> list[Change]:
        """The changes a batch makes. Text of the open block is one str, unless another change divides it."""
        changes: list[Change] = []
        said: list[str] = []
        for part in parts:
            if part.__class__ is BlockText:
                self._say(part, said, changes)
                continue
            if said:
                changes.append(_joined(said))
                said = []
            self._take(part, changes)
        if said:
            changes.append(_joined(said))
        return changes

    def interrupt(self) -> list[Change]:
        """Close everything that is still open: nothing more will come."""
        changes: list[Change] = []
        self._close_all(changes)
        return changes

    def _say(self, part: BlockText, said: list[str], changes: list[Change]) -> None:
        building = self._by_key.get(part.key)
        if building is None:
            self._note(_unheard(part), changes)
            return
        text = storable(part.text)
        building.pieces.append(text)
        if building is self._open and text:
            said.append(text)

    def _take(self, part: Part, changes: list[Change]) -> None:
        match part:
            case BlockOpened():
                self._begin(part, changes)
            case BlockData(key=key) if key in self._by_key:
                self._by_key[key].news.append(part)
            case BlockClosed(key=key) if key in self._by_key:
                self._by_key.pop(key).closed = True
                self._advance(changes)
            case MessageStarted():
                self._message_started(part, changes)
            case MessageDelta():
                self._message_delta(part, changes)
            case MessageEnded():
                self.ended = True
                self._close_all(changes)
            case Unknown():
                self._note(part, changes)
            case _:
                self._note(_unheard(part), changes)

    def _note(self, part: Unknown, changes: list[Change]) -> None:
        self.unknown.append(part)
        changes.append(part)

    def _begin(self, part: BlockOpened, changes: list[Change]) -> None:
        if forgotten := self._by_key.get(part.key):  # its key is used again, so nothing can close it any more
            forgotten.closed = forgotten.interrupted = True
        building = _Building(part, self._next_index)
        self._next_index += 1
        self._by_key[part.key] = building
        self._queue.append(building)
        self._advance(changes)

    def _message_started(self, part: MessageStarted, changes: list[Change]) -> None:
        self._close_all(changes)  # a second start: what the first one left open stays open for ever
        self.started = True
        self.usage = merge_usage(self.usage, part.usage)
        self.request_id = part.request_id or self.request_id
        self._keep(part.data)

    def _message_delta(self, part: MessageDelta, changes: list[Change]) -> None:
        self.usage = merge_usage(self.usage, part.usage)
        self._keep(part.data)
        if part.stop_reason is None:
            return
        self.stop_reason = storable(part.stop_reason)
        if part.stop_reason in _TRUNCATED:
            self._doubt_last()
            self._close_all(changes)
        else:
            self._advance(changes)

    def _keep(self, data: str | None) -> None:
        if data is not None:
            known = members_of(self.data) if self.data else {}
            self.data = to_json({**known, **members_of(storable(data))})

    def _doubt_last(self) -> None:
        if self._queue and self._queue[-1].doubtful:
            self._queue[-1].closed = False

    def _close_all(self, changes: list[Change]) -> None:
        for building in self._queue:
            building.interrupted |= not building.closed
            building.closed = True
        self._by_key.clear()
        self._advance(changes, wait=False)

    def _advance(self, changes: list[Change], wait: bool = True) -> None:
        """Put out what may be: blocks in their order, each opened only when those before it are closed."""
        while self._queue:
            building = self._queue[0]
            if building is not self._open:
                self._open = building
                self._show(building, changes)
            if not building.closed or (wait and self._must_wait(building)):
                return
            changes.append(building.block(self._round, self._attempt))
            self._queue.popleft()
            self._open = None

    def _must_wait(self, building: "_Building") -> bool:
        """Input that is no JSON object may have been cut by max_tokens, which is only said after it."""
        return building.doubtful and len(self._queue) == 1 and self.stop_reason is None

    def _show(self, building: "_Building", changes: list[Change]) -> None:
        opened = building.opened
        changes.append(
            BlockStart(self._attempt, building.index, self._round, opened.type, opened.tool_use_id, opened.name)
        )
        if text := "".join(building.pieces):
            changes.append(text)


class _Building:
    __slots__ = ("closed", "index", "interrupted", "news", "opened", "pieces")

    def __init__(self, opened: BlockOpened, index: int) -> None:
        self.opened = opened._replace(
            type=storable(opened.type),
            tool_use_id=_storable(opened.tool_use_id),
            name=_storable(opened.name),
        )
        self.index = index
        self.pieces = [storable(opened.text)]
        self.news: list[BlockData] = []
        self.closed = False
        self.interrupted = False

    @property
    def doubtful(self) -> bool:
        return self.opened.type == TOOL_USE and not self.interrupted and not is_object("".join(self.pieces))

    def block(self, round: int, attempt: int) -> Block:
        opened = self.opened
        return Block(
            index=self.index,
            round=round,
            attempt=attempt,
            type=opened.type,
            text="".join(self.pieces),
            data=self._data(),
            tool_use_id=opened.tool_use_id,
            name=opened.name,
            interrupted=self.interrupted,
        )

    def _data(self) -> str | None:
        data = None if self.opened.data is None else storable(self.opened.data)
        if not self.news:
            return data
        members: dict[str, Any] = members_of(data) if data else _bare(self.opened.type)
        for _, field, value, append in self.news:
            members[field] = [*_list(members.get(field)), value] if append else value
        return to_json(members)


def _storable(word: str | None) -> str | None:
    return None if word is None else storable(word)


def _joined(said: list[str]) -> str:
    return said[0] if len(said) == 1 else "".join(said)


def _bare(type: str) -> dict[str, Any]:
    return {"type": type, "text": ""} if type == TEXT else {"type": type}


def _list(known: Any) -> list[Any]:
    if isinstance(known, msgspec.Raw):
        return _items.decode(known) or []
    return known or []


def _unheard(part: Part) -> Unknown:
    """News about a block that is not open."""
    return Unknown(to_json({"part": type(part).__name__, "fields": part._asdict()}))
