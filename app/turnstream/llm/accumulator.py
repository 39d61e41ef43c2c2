"""Accumulates streamed parts into blocks: one block is open at a time, each is closed whole, and no part is lost."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from turnstream.domain.blocks import Block
from turnstream.domain.events import BlockStart
from turnstream.domain.kinds import TEXT, TOOL_USE
from turnstream.domain.rounds import merge_usage
from turnstream.kit.text import storable
from turnstream.llm.provider import (
    UNNAMED,
    BlockClosed,
    BlockData,
    BlockOpened,
    BlockText,
    MessageDelta,
    MessageEnded,
    MessageStarted,
    Part,
    Unknown,
    generated_call_id,
)
from turnstream.llm.raw_json import is_object, members_of, to_json

# A str is new text of the open block; a Block is that block after it has closed.
Change = BlockStart | str | Block | Unknown

_MOST_PIECES = 10_000  # pieces of a text before they are joined: joining a long text at once would block every stream
_LONGEST_ID = 2000  # bytes; a database index accepts only slightly more
_TRUNCATED = frozenset({"max_tokens", "model_context_window_exceeded"})
_items = msgspec.json.Decoder(list[msgspec.Raw] | None)


class Accumulator:
    """The state of one model call. Feed it every batch; its attributes describe the message so far."""

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
        self._queue: list[_Building] = []  # blocks in order; only the first may be open for readers
        self._by_key: dict[int, _Building] = {}
        self._call_ids: set[str] = set()
        self._open: _Building | None = None

    def feed(self, parts: Sequence[Part]) -> list[Change]:
        """Returns the changes of a batch. Text of the open block is one str, unless another change splits it."""
        changes: list[Change] = []
        pieces: list[str] = []
        for part in parts:
            if part.__class__ is BlockText:
                self._append_text(part, pieces, changes)
                continue
            if pieces:
                changes.append("".join(pieces))
                pieces = []
            self._apply(part, changes)
        if pieces:
            changes.append("".join(pieces))
        return changes

    def interrupt(self) -> list[Change]:
        """Closes all open blocks as interrupted, because the stream has ended."""
        changes: list[Change] = []
        self._close_all(changes)
        return changes

    def _append_text(self, part: BlockText, pieces: list[str], changes: list[Change]) -> None:
        building = self._by_key.get(part.key)
        if building is None:
            self._keep_unknown(_orphan(part), changes)
            return
        text = storable(part.text)
        building.pieces.append(text)
        if len(building.pieces) > _MOST_PIECES:
            building.pieces = ["".join(building.pieces)]
        if building is self._open and text:
            pieces.append(text)

    def _apply(self, part: Part, changes: list[Change]) -> None:
        match part:
            case BlockOpened():
                self._begin(part, changes)
            case BlockData(key=key) if key in self._by_key:
                self._by_key[key].updates.append(part)
            case BlockClosed(key=key) if key in self._by_key:
                self._by_key.pop(key).closed = True
                self._advance(changes)
            case MessageStarted():
                self._close_all(changes)  # after a second start, no part can close the blocks of the first message
                self.started = True
                self.usage = merge_usage(self.usage, part.usage)
                self.request_id = part.request_id or self.request_id
                self._merge_data(part.data)
            case MessageDelta():
                self._message_delta(part, changes)
            case MessageEnded():
                self.ended = True
                self._close_all(changes)
            case Unknown():
                self._keep_unknown(part, changes)
            case _:
                self._keep_unknown(_orphan(part), changes)

    def _keep_unknown(self, part: Unknown, changes: list[Change]) -> None:
        self.unknown.append(part)
        changes.append(part)

    def _begin(self, part: BlockOpened, changes: list[Change]) -> None:
        if replaced := self._by_key.get(part.key):  # the provider reused the key: no part can close this block
            replaced.closed = replaced.interrupted = True
        building = _Building(self._identified(part) if part.type == TOOL_USE else part, self._next_index)
        self._next_index += 1
        self._by_key[part.key] = building
        self._queue.append(building)
        self._advance(changes)

    def _identified(self, call: BlockOpened) -> BlockOpened:
        """Returns the call with a name, and with an id that is unique in its round. A missing or repeated id of the
        provider is replaced, because the id is the key of the call and of its result in the rows.
        """
        id, name, data = _storable(call.tool_use_id) or "", call.name or UNNAMED, call.data
        if not id or id in self._call_ids or len(id.encode()) > _LONGEST_ID:
            id = generated_call_id(f"{self._round} {id}".encode(), self._next_index)
        self._call_ids.add(id)
        if data is not None and (id, name) != (call.tool_use_id, call.name):
            data = to_json({**members_of(data), "id": id, "name": name})
        return call._replace(tool_use_id=id, name=name, data=data)

    def _message_delta(self, part: MessageDelta, changes: list[Change]) -> None:
        self.usage = merge_usage(self.usage, part.usage)
        self._merge_data(part.data)
        if part.stop_reason is None:
            return
        self.stop_reason = storable(part.stop_reason)
        if part.stop_reason in _TRUNCATED:
            if self._queue and self._queue[-1].doubtful:
                self._queue[-1].closed = False  # the provider closed the block, but its input was truncated
            self._close_all(changes)
        else:
            self._advance(changes)

    def _merge_data(self, data: str | None) -> None:
        if data is not None:
            known = members_of(self.data) if self.data else {}
            self.data = to_json({**known, **members_of(storable(data))})

    def _close_all(self, changes: list[Change]) -> None:
        for building in self._queue:
            building.interrupted |= not building.closed
            building.closed = True
        self._by_key.clear()
        self._advance(changes, wait=False)

    def _advance(self, changes: list[Change], wait: bool = True) -> None:
        """Emits blocks in order: a block opens when all blocks before it are closed."""
        while self._queue:
            building = self._queue[0]
            if building is not self._open:
                self._open = building
                new = building.opened
                changes.append(
                    BlockStart(self._attempt, building.index, self._round, new.type, new.tool_use_id, new.name)
                )
                if text := "".join(building.pieces):
                    changes.append(text)
            if not building.closed:
                return
            # If input is not a JSON object, max_tokens may have truncated it; the stop reason arrives after the block.
            if wait and len(self._queue) == 1 and self.stop_reason is None and building.doubtful:
                return
            changes.append(building.block(self._round, self._attempt))
            del self._queue[0]
            self._open = None


class _Building:
    __slots__ = ("closed", "index", "interrupted", "opened", "pieces", "updates")

    def __init__(self, opened: BlockOpened, index: int) -> None:
        self.opened = opened._replace(
            type=storable(opened.type),
            tool_use_id=_storable(opened.tool_use_id),
            name=_storable(opened.name),
        )
        self.index = index
        self.pieces = [storable(opened.text)]
        self.updates: list[BlockData] = []
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
        if not self.updates:
            return data
        type = self.opened.type
        members: dict[str, Any] = members_of(data) if data else {"type": type} | ({"text": ""} if type == TEXT else {})
        for _, field, value, append in self.updates:
            before = members.get(field) if append else None
            items = _items.decode(before) if isinstance(before, msgspec.Raw) else before
            members[field] = [*(items or ()), value] if append else value
        return to_json(members)


def _storable(value: str | None) -> str | None:
    return None if value is None else storable(value)


def _orphan(part: Part) -> Unknown:
    """Returns a part as an unknown part, because its block is not open."""
    return Unknown(to_json({"part": type(part).__name__, "fields": part._asdict()}))
