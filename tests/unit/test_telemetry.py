import logging

from prometheus_client import generate_latest
from structlog.testing import capture_logs

from app.telemetry import HOOK_FAILURES, PERSIST_SECONDS, Libraries


def test_metrics_have_no_series_with_the_time_of_their_creation() -> None:
    HOOK_FAILURES.labels("of_a_test").inc()
    PERSIST_SECONDS.labels("of_a_test").observe(0.1)
    text = generate_latest().decode()
    assert "turnstream_persist_seconds_bucket" in text
    assert "_created" not in text


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
