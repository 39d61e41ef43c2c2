"""A watch over the event loop, which logs functions that block the loop for too long."""

import asyncio
import os
import sys
import time
from threading import Event, Thread, get_ident, get_native_id
from time import perf_counter
from types import FrameType, TracebackType
from typing import Self

import structlog

from turnstream.libraries.extension_metrics import LOOP_HELD_SECONDS

log = structlog.get_logger(__name__)

PAUSE = 0.05  # seconds between two requests for a sign of life of the loop
LIMIT = 0.02  # seconds without a sign of life after which the stack of the loop's thread is read
_LOGGED = 0.1  # seconds; a shorter block is measured, but not logged
_LONG = 1.0  # seconds after which a block is logged before its end, because the block may never end


class LoopWatch:
    """Watches the event loop that enters the `with` block, in a thread of its own. A stack is named by its innermost
    function in `package`, or otherwise by a function of a library. Time in which the loop's thread was ready to run but
    had no processor is not counted, because then the machine is busy and the loop is not blocked.
    """

    def __init__(self, package: str = "turnstream") -> None:
        self._package = package

    def __enter__(self) -> Self:
        self._loop, self._watched = asyncio.get_running_loop(), get_ident()
        self._figures = _figures_of(get_native_id())
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="loop-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the watch, but does not wait for its thread, because the thread may wait for this loop."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            self._watch()
        finally:
            if self._figures is not None:
                os.close(self._figures)

    def _watch(self) -> None:
        while not self._stopped.wait(PAUSE):
            answered, asked, used = Event(), self._time(), _processor_seconds(self._watched)
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # the loop was closed
                return
            if not answered.wait(LIMIT):
                where = _place(sys._current_frames().get(self._watched), self._package)
                if not answered.wait(_LONG) and not self._stopped.is_set():
                    self._log(self._time() - asked, _processor_seconds(self._watched) - used, where)
                while not answered.wait(_LONG):
                    if self._stopped.is_set():
                        return  # a loop that has ended no longer answers, but is not blocked
                held, used = self._time() - asked, _processor_seconds(self._watched) - used
                if held < LIMIT:
                    continue
                LOOP_HELD_SECONDS.labels(where).observe(held)
                if held >= _LOGGED:
                    self._log(held, used, where)

    def _time(self) -> float:
        """Returns the seconds of a clock that stops while the loop's thread waits for a processor."""
        return perf_counter() - _seconds_without_processor(self._figures)

    @staticmethod
    def _log(held: float, used: float, where: str) -> None:
        log.warning("loop.held", seconds=round(held, 3), processor_seconds=round(used, 3), where=where)


def _processor_seconds(thread: int) -> float:
    """Returns the processor time of a thread, or the wall time if the system does not report it."""
    if sys.platform != "linux":
        return perf_counter()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def _figures_of(native: int) -> int | None:
    """Opens the scheduler's figures of a thread; None if the system has none. A path would take longer to read."""
    try:
        return os.open(f"/proc/self/task/{native}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _seconds_without_processor(figures: int | None) -> float:
    """Returns the time in which a thread was ready to run but had no processor; 0 if the system does not count it."""
    return 0.0 if figures is None else int(os.pread(figures, 100, 0).split()[1]) / 1e9


def _place(frame: FrameType | None, package: str) -> str:
    """Returns the innermost function of `package` on the stack, otherwise the innermost function of all."""
    innermost = frame
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(f"{package}."):
        frame = frame.f_back
    found = frame or innermost
    return "unknown" if found is None else f"{found.f_globals.get('__name__', '')}.{found.f_code.co_qualname}"
