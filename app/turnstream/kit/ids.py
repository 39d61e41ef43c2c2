"""Identifiers: UUIDs of version 7 (RFC 9562), which sort by their time of creation."""

import os
import threading
from uuid import UUID

from turnstream.kit.clock import CLOCK


class _Clock:
    """Returns strictly growing values of time and 74 random bits, so that ids of one process sort by creation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> int:
        milliseconds = int(CLOCK.seconds() * 1000)
        fresh = milliseconds << 74 | int.from_bytes(os.urandom(10)) >> 7
        with self._lock:
            self._last = max(fresh, self._last + 1)
            return self._last


_clock = _Clock()


def new_id() -> UUID:
    """A new UUID v7, greater than every id that this process made before."""
    value = _clock.next()
    milliseconds, high, low = value >> 74, value >> 62 & 0xFFF, value & (1 << 62) - 1
    return UUID(int=milliseconds << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low)
