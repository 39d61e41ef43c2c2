from prometheus_client import generate_latest

from app.telemetry import HOOK_FAILURES, PERSIST_SECONDS


def test_metrics_have_no_series_with_the_time_of_their_creation() -> None:
    HOOK_FAILURES.labels("of_a_test").inc()
    PERSIST_SECONDS.labels("of_a_test").observe(0.1)
    text = generate_latest().decode()
    assert "turnstream_persist_seconds_bucket" in text
    assert "_created" not in text
