"""The call that returns metrics."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.extensions.metrics.endpoints import metrics

CALLS = CallGroup(
    (
        Endpoint(
            "GET /metrics",
            metrics,
            "Prometheus metrics; they need a token of their own if the server has one (TURNSTREAM_METRICS_TOKEN)",
            gives="text/plain",
            problems=(401, 500),
            open=True,
        ),
    ),
    "Health",
)
