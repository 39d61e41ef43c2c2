"""Paths of recently ended turns, kept in memory for the turns that follow."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any
from uuid import UUID

from turnstream.domain.turns import Turn
from turnstream.llm.conversation.messages import KnownEntries

KEPT = 600.0  # seconds for which an unused path is kept
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
    """Keeps up to `most_bytes` of paths, by the last turn of each path. The least recently used path is evicted first.

    A path is valid without a comparison with its rows, because an ended turn and its parent do not change. If a turn is
    deleted, a statement that names it as a parent finds no row, and no turn after it can be claimed. Only Postgres may
    lose the end of a turn, so all paths are dropped after an outage of Postgres.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._paths: OrderedDict[UUID, WarmPath] = OrderedDict()
        self._size = 0

    def find(self, leaf: UUID) -> WarmPath | None:
        """Returns the path from its root to `leaf`, if the path is in memory."""
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
    """Returns the approximate bytes of a turn in memory, without the server's tools, which all turns share."""
    size = _TURN + _BLOCK * len(turn.blocks)
    # Without a function call for each value, because a path may have tens of thousands of blocks.
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
    """Returns the approximate bytes of a JSON value: its texts and numbers, and `_ITEM` for each member or item."""
    if isinstance(value, str):
        return getsizeof(value)
    if isinstance(value, Mapping):
        return sum(_ITEM + _bytes_of(name) + _bytes_of(member) for name, member in value.items())
    if isinstance(value, list | tuple):
        return sum(_ITEM + _bytes_of(item) for item in value)
    return _NUMBER if isinstance(value, int | float) else 0
