"""The amount of work in tests that find more the longer they run.

`make test` has the tests without a database, and a sixth of the other modules. FULL_TESTS=1, as in `.ci/run`, has a
third of the core's modules, a quarter of the others, and an eighth of the full tests. FULL_TESTS=all has all tests.
Each day has another part of each, and of long parameter tables (`share`). TESTS_DAY=N repeats the selection of day N.
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
os.environ["TESTS_DAY"] = str(DAY)  # the workers use the same day, even after midnight
DAYS: Final = 8  # days, with a run each, for all full tests
_PLAIN_DAYS: Final = 6  # the same of `make test` for all modules
_ALWAYS: Final = ("contracts/", "unit/")
_OF_THE_CORE: Final = ("faults/", "integration/")
# The same of FULL_TESTS=1 for all modules of the core, and for all modules of extensions and distributions.
_CORE_DAYS: Final = 3
_OTHER_DAYS: Final = 4


def tries(most: int) -> int:
    """All values with FULL_TESTS=all, half with FULL_TESTS=1, a fifth otherwise."""
    return most if ALL else -(-most // 2) if FULL else -(-most // 5)


def share(places: Sequence[T], full: int, plain: int) -> Sequence[T]:
    """One of `full` values in a run of FULL_TESTS=1, one of `plain` in `make test`."""
    step = 1 if ALL else full if FULL else plain
    return places[DAY % step :: step] or places[:1]


def is_of_the_day(name: str) -> bool:
    """Whether this run has the full test, or module of them, with this name."""
    return ALL or (FULL and crc32(name.encode()) % DAYS == DAY % DAYS)


def is_of_a_plain_run(name: str) -> bool:
    """Whether this run has the module of tests with this name, if it is no full one."""
    if ALL or name.startswith(_ALWAYS):
        return True
    days = _PLAIN_DAYS if not FULL else _CORE_DAYS if name.startswith(_OF_THE_CORE) else _OTHER_DAYS
    return crc32(name.encode()) % days == DAY % days
