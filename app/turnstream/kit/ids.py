"""Identifiers: UUIDs of version 7 (RFC 9562), which sort by their time of creation."""

import os
import threading
from uuid import UUID

from turnstream.kit.clock import CLOCK


class _Ids:
    """Makes UUIDs of version 7, with 74 random bits. Each id is greater than every id that the process made before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> UUID:
        fresh = int(CLOCK.seconds() * 1000) << 74 | int.from_bytes(os.urandom(10)) >> 7
        with self._lock:
            self._last = value = max(fresh, self._last + 1)
        milliseconds, high, low = value >> 74, value >> 62 & 0xFFF, value & (1 << 62) - 1
        return UUID(int=milliseconds << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low)


new_id = _Ids()
