from prometheus_client import REGISTRY

from turnstream.domain.errors import TransientError
from turnstream.engine.metrics import count_retry


def retries(reason: str) -> float | None:
    return REGISTRY.get_sample_value("turnstream_provider_retries_total", {"reason": reason})


def test_a_name_that_a_provider_invents_is_no_series_of_its_own() -> None:
    known, others = retries("overloaded_error") or 0, retries("other") or 0
    count_retry(TransientError("overloaded_error", "no room"))
    count_retry(TransientError("a_name_of_its_own_4711", "no room"))
    assert (retries("overloaded_error"), retries("other")) == (known + 1, others + 1)
    assert retries("a_name_of_its_own_4711") is None
