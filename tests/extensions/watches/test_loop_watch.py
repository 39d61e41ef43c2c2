import asyncio
import os
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from turnstream.extensions.watches import loop_watch
from turnstream.extensions.watches.loop_watch import LoopWatch

HERE = f"{__name__}.hold_up"


def hold_up(seen: threading.Event) -> bool:
    """Blocks the event loop until the watch has read the stack. The watch does not read the stack until the loop has
    recovered from the previous block.
    """
    return seen.wait(1)


def count(where: str) -> float:
    return REGISTRY.get_sample_value("turnstream_event_loop_held_seconds_count", {"where": where}) or 0


async def test_a_function_that_blocks_the_loop_is_named_in_a_metric_and_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, noted, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()
    place, observe = loop_watch._place, loop_watch.log.warning

    def look(*arguments: Any) -> str:
        where = place(*arguments)  # the stack is read before the blocked loop continues
        seen.set()
        return where

    def warning(*args: object, **fields: object) -> None:
        observe(*args, **fields)
        loop.call_soon_threadsafe(noted.set)

    monkeypatch.setattr(loop_watch, "_place", look)
    monkeypatch.setattr(loop_watch, "_LOGGED", 0)
    monkeypatch.setattr(loop_watch.log, "warning", warning, raising=False)
    before = count(HERE)
    with capture_logs() as logs, LoopWatch("tests"):
        # The count of the metric is not checked here: it is slow in a process with many metrics, so the watch would see
        # only this frame.
        while not any({"event": "loop.held", "where": HERE}.items() <= line.items() for line in logs):
            seen.clear()
            noted.clear()
            if hold_up(seen):
                await noted.wait()
            await asyncio.sleep(0)  # if the watch gets no CPU time, the test times out, and not the process
    assert count(HERE) > before


async def test_a_loop_that_waits_for_a_processor_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake figures report that other processes used the processor all the time."""
    looked, watched, figures_of = threading.Event(), list[int](), loop_watch._figures_of

    def opened(native: int) -> int | None:
        watched.append(native)
        return figures_of(native)

    def without(_figures: int | None) -> float:
        return perf_counter()

    def look(*arguments: Any) -> str:
        looked.set()
        return HERE

    monkeypatch.setattr(loop_watch, "_figures_of", opened)
    monkeypatch.setattr(loop_watch, "_seconds_without_processor", without)
    monkeypatch.setattr(loop_watch, "_place", look)
    before = count(HERE)
    with LoopWatch("tests") as watch:
        assert looked.wait(60)
    await asyncio.to_thread(watch._thread.join, 10)
    assert count(HERE) == before
    assert watched == [threading.main_thread().native_id]


def test_linux_counts_the_time_without_a_processor() -> None:
    figures = loop_watch._figures_of(threading.get_native_id())
    assert (figures is not None) == Path("/proc/self/schedstat").exists()
    first = loop_watch._seconds_without_processor(figures)
    assert (first > 0) == (figures is not None)
    assert loop_watch._seconds_without_processor(figures) >= first, "an open file has the newest figures"
    if figures is not None:
        os.close(figures)
    assert loop_watch._seconds_without_processor(loop_watch._figures_of(0)) == 0


async def test_the_watch_ends_with_its_block() -> None:
    with LoopWatch() as watch:
        pass
    await asyncio.to_thread(watch._thread.join, 10)
    assert not watch._thread.is_alive()


def test_a_loop_that_ends_unwatched_is_held_by_nothing() -> None:
    async def watched() -> LoopWatch:
        return LoopWatch().__enter__()

    watch = asyncio.run(watched())
    watch._thread.join(10)
    assert not watch._thread.is_alive(), "the loop is closed"
