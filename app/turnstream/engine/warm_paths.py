"""Paths of recently ended turns in memory, for the next turns."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any
from uuid import UUID

from turnstream.domain.turns import Turn
from turnstream.llm.conversation.messages import KnownEntries

KEPT = 600.0  # seconds that an unused path stays
# Approximate bytes of a turn, a block and a tool in memory, without their texts.
_TURN, _BLOCK, _TOOL = 2000, 1000, 500
_ITEM, _NUMBER = 8, 32


@dataclass(frozen=True, slots=True)
class WarmPath:
    """A path, and the messages that earlier requests made from its turns."""

    turns: Sequence[Turn]
    entries: KnownEntries
    size: int
    timer: asyncio.TimerHandle


class WarmPaths:
    """Up to `most_bytes` of paths, by the turn at their end. The least recently used path is evicted first.

    A path is valid without a comparison with its rows: an ended turn and its parent do not change. After the deletion
    of a turn, a statement with the turn as a parent finds no row, and no turn behind it can be claimed. Only Postgres
    may lose the end of a turn: all paths are dropped after an outage of Postgres.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._paths: OrderedDict[UUID, WarmPath] = OrderedDict()
        self._size = 0

    def find(self, leaf: UUID) -> WarmPath | None:
        """The path from its root to `leaf`, if it is in memory."""
        found = self._paths.get(leaf)
        if found is not None:
            self._paths.move_to_end(leaf)
        return found

    def keep(self, path: Sequence[Turn], entries: KnownEntries) -> None:
        """Keeps a path of ended turns. A longer path replaces the path that it continues."""
        before = self._drop(path[-3].id) if len(path) > 2 else None
        new = path if before is None else path[-2:]
        self._drop(path[-1].id)
        size = sum(map(_size_of, new)) + (0 if before is None else before.size)
        if size > self._most:
            return
        timer = asyncio.get_running_loop().call_later(KEPT, self._drop, path[-1].id)
        self._paths[path[-1].id] = WarmPath(path, entries, size, timer)
        self._size += size
        while self._size > self._most:
            self._drop(next(iter(self._paths)))

    def clear(self) -> None:
        for leaf in [*self._paths]:
            self._drop(leaf)

    def _drop(self, leaf: UUID) -> WarmPath | None:
        dropped = self._paths.pop(leaf, None)
        if dropped is not None:
            dropped.timer.cancel()
            self._size -= dropped.size
        return dropped


def _size_of(turn: Turn) -> int:
    """The approximate bytes of a turn. A character takes one to four. Tools of the server are shared by all turns."""
    size = _TURN + _BLOCK * len(turn.blocks)
    # A path may have tens of thousands of blocks, so a value of a rare type must cost no call.
    texts = [
        text
        for block in turn.blocks
        for text in (block.text, block.data, block.notes, block.client_data)
        if text is not None
    ]
    if (request := turn.request) is not None:
        texts += [request.system or "", *request.provider_tools]
        if request.output:
            texts.append(request.output.schema)
        if request.params or request.labels:
            size += _bytes_of((request.params, request.labels))
        for tool in request.tools:
            if tool.client or tool.http:
                size += _TOOL + _bytes_of(tool.http and (tool.http.url, tool.http.headers))
                texts += (tool.description, tool.input_schema)
    return size + sum(map(getsizeof, texts))


def _bytes_of(value: Any) -> int:
    """The bytes of the texts and numbers in a JSON value; a member or an item adds about its size in Python."""
    if isinstance(value, str):
        return getsizeof(value)
    if isinstance(value, Mapping):
        return sum(_ITEM + _bytes_of(name) + _bytes_of(member) for name, member in value.items())
    if isinstance(value, list | tuple):
        return sum(_ITEM + _bytes_of(item) for item in value)
    return _NUMBER if isinstance(value, int | float) else 0
