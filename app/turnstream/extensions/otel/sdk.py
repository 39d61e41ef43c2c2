"""Connects the tracer and the metrics to the SDK of the process."""

from importlib.metadata import version
from typing import Final

from opentelemetry import metrics, trace

from turnstream.extensions.otel.tracer import OtelTracer
from turnstream.tracing import TRACING

# The metrics of OpenTelemetry's conventions, with the recommended boundaries of buckets.
_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS: Final = tuple(4.0**power for power in range(14))
_HISTOGRAMS: Final = {
    "gen_ai.client.operation.duration": ("s", "GenAI operation duration.", _SECONDS),
    "gen_ai.client.operation.time_to_first_chunk": ("s", "Time to receive the first chunk.", _SECONDS),
    "gen_ai.client.token.usage": ("{token}", "Number of input and output tokens used.", _TOKENS),
}


def begin(content: int = 0) -> None:
    """Enables spans in the process. An attribute has at most `content` characters of content."""
    meter = metrics.get_meter("turnstream", version("turnstream"))
    histograms = {
        name: meter.create_histogram(name, unit, words, explicit_bucket_boundaries_advisory=boundaries)
        for name, (unit, words, boundaries) in _HISTOGRAMS.items()
    }
    tracer = trace.get_tracer("turnstream", version("turnstream"))
    TRACING.begin(OtelTracer(tracer, histograms, content))
