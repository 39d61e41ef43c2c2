"""How much is tried by tests that find more the longer they try.

FULL_TESTS=1, as in `.ci/run`, asks for more than `make test` tries, and FULL_TESTS=all for everything. FULL_TESTS=1 has
a part of the full tests (`is_of_the_day`) and of long tables of places (`share`), each day the next one. TESTS_DAY=N
repeats the part of a day.
"""

import os
from collections.abc import Sequence
from time import time
from typing import Final, TypeVar
from zlib import crc32

T = TypeVar("T")

FULL = os.environ.get("FULL_TESTS", "") in {"1", "all"}
ALL = os.environ.get("FULL_TESTS") == "all"
DAY = int(os.environ.get("TESTS_DAY") or time() // 86_400)
os.environ["TESTS_DAY"] = str(DAY)  # also that of the workers, should the day change now
DAYS: Final = 3  # that a run for each takes for all full tests


def tries(most: int) -> int:
    """All of them where all is asked for, half of them with FULL_TESTS=1, a fifth otherwise."""
    return most if ALL else -(-most // 2) if FULL else -(-most // 5)


def share(places: Sequence[T], full: int, plain: int) -> Sequence[T]:
    """One of `full` places in a run of FULL_TESTS=1, one of `plain` in `make test`."""
    step = 1 if ALL else full if FULL else plain
    return places[DAY % step :: step] or places[:1]


def is_of_the_day(name: str) -> bool:
    """Whether this run has the full test, or module of them, with this name."""
    return ALL or (FULL and crc32(name.encode()) % DAYS == DAY % DAYS)
