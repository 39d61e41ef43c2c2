import json
import logging
import re
import subprocess
import sys

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from tests.support.reference import METRICS, ROOT
from turnstream import telemetry
from turnstream.libraries import extension_metrics
from turnstream.telemetry import HOOK_FAILURES, PERSIST_SECONDS, Libraries


def test_metrics_have_no_series_with_the_time_of_their_creation() -> None:
    HOOK_FAILURES.labels("of_a_test").inc()
    PERSIST_SECONDS.labels("of_a_test").observe(0.1)
    text = generate_latest().decode()
    assert "turnstream_persist_seconds_bucket" in text
    assert "_created" not in text


def test_each_metric_has_a_place_that_changes_it() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "app").rglob("*.py")))
    names = {id(each): name for module in (telemetry, extension_metrics) for name, each in vars(module).items()}
    assert [names[id(each)] for each in METRICS if not re.search(rf"\b{names[id(each)]}\.\w", code)] == []


def test_a_warning_of_a_library_is_passed_on_once_a_minute_and_each_error() -> None:
    libraries = Libraries()
    with capture_logs() as lines:
        for level, at, message in [
            (logging.WARNING, 0, "Invalid HTTP request received."),
            (logging.WARNING, 59, "Invalid HTTP request received."),
            (logging.WARNING, 59, "another"),
            (logging.WARNING, 61, "Invalid HTTP request received."),
            (logging.ERROR, 62, "failed"),
            (logging.ERROR, 63, "failed"),
        ]:
            record = logging.LogRecord("uvicorn.error", level, "", 0, message, None, None)
            record.created = at
            libraries.emit(record)
    assert [line["message"] for line in lines] == [
        "Invalid HTTP request received.",
        "another",
        "Invalid HTTP request received.",
        "failed",
        "failed",
    ]


def test_the_warnings_that_are_remembered_are_bounded() -> None:
    libraries = Libraries()
    with capture_logs() as lines:
        for number in range(3000):
            libraries.emit(logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, f"{number}", None, None))
    assert len(lines) == 3000
    assert len(libraries._passed) <= 1000


# Statements that log or print in a server, each with a text that standard error must contain.
LINES = {
    "half of a character": ("log.info('event', text='a \\ud800')", '"event":"\'event\'"'),
    "a value whose repr raises": ("log.info('event', value=Bad())", '"event":"\'event\'"'),
    "a key that is no text": ("log.info('event', value={(1, 2): Bad()})", '"event":"\'event\'"'),
    "an exception whose text raises": (
        "try:\n    raise BadError\nexcept BadError: log.exception('event')",
        '"event":"event"',
    ),
    "a message of a library that does not fit": ("logging.getLogger('lib').error('%d %d', 'a')", "'%d %d'"),
    "a warning": ("import warnings; warnings.warn('event')", "UserWarning: event"),
    "half of a character that is printed": ("print('a \\ud800', file=sys.stderr)", "a \\ud800"),
    "a failure in a thread": ("import threading; threading.Thread(target=lambda: 1 / 0).start()", "ZeroDivisionError"),
    "a failure of a callback": ("loop.call_soon(lambda: 1 / 0); loop.run_until_complete(go())", "ZeroDivisionError"),
    "a failure that nobody can raise": ("BadEnd()", "ZeroDivisionError"),
}
BEFORE = """
import asyncio, logging, os, sys, structlog
from turnstream.telemetry import LOG_LINES_DROPPED, configure_logging, write_in_background
write_in_background()
configure_logging("info")
log = structlog.get_logger()
loop = asyncio.new_event_loop()
class Bad:
    def __repr__(self): raise ValueError("bad")
class BadError(Exception):
    def __str__(self): raise ValueError("bad")
class BadEnd:
    def __del__(self): 1 / 0
async def go(): pass
"""


@pytest.mark.parametrize("case", LINES)
def test_whatever_is_logged_is_written(case: str) -> None:
    code, words = LINES[case]
    done = subprocess.run([sys.executable, "-c", BEFORE + code], stderr=subprocess.PIPE, check=True, text=True)
    assert words in done.stderr
    if done.stderr.startswith("{"):
        json.loads(done.stderr)


@pytest.mark.parametrize("sink", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize("case", LINES)
def test_whatever_cannot_be_written_raises_nothing(case: str, sink: str) -> None:
    code = f"{BEFORE}{LINES[case][0]}\nsys.stderr.buffer.drain(10)\nprint(LOG_LINES_DROPPED._value.get())"
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {sink}', "sh", sys.executable, "-c", code], stdout=subprocess.PIPE, check=True
    )
    assert (float(done.stdout) > 0) == (sink == "2>/dev/full")
