"""Processes with a wrong wall clock, at no cost. Under libfaketime a server needs three times the CPU."""

import ctypes
from pathlib import Path

from tests.bench.native import BUILT, compile_to
from tests.support.programs import missing

_SOURCE = Path(__file__).with_name("clock.c")
_LIBRARY = BUILT / "clock.so"


def clock_off_by(seconds: int) -> dict[str, str]:
    """Returns the environment of a process with a wrong clock, or nothing if this machine does not support it.
    Intervals stay right.
    """
    if missing("a C compiler"):
        return {}
    if not _LIBRARY.exists() or _LIBRARY.stat().st_mtime < _SOURCE.stat().st_mtime:
        compile_to(_LIBRARY, _SOURCE, "-shared", "-fPIC")
    return {"LD_PRELOAD": str(_LIBRARY), "CLOCK_OFF_BY": str(seconds)}


def take_clock_of_environment() -> None:
    """Sets the clock of a forked process from its own environment, if the parent process was started with an adjustable
    clock.
    """
    if read := getattr(ctypes.CDLL(None), "read_clock_off_by", None):
        read()
