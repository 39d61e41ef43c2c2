"""Spans, as an exporter of OpenTelemetry's SDK receives them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from turnstream.extensions.otel.sdk import begin
from turnstream.tracing import TRACING

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@cache
def _exporter() -> InMemorySpanExporter:
    """Returns the exporter of the only SDK in the process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@contextmanager
def collected(content: int = 0) -> Iterator[InMemorySpanExporter]:
    """Collects the spans of one test, with up to `content` characters of each text."""
    exporter = _exporter()
    exporter.clear()
    begin(content)
    try:
        yield exporter
    finally:
        TRACING.end()


def of_trace(spans: InMemorySpanExporter) -> Sequence[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if f"{span.context.trace_id:032x}" == TRACE]


def span_of(spans: InMemorySpanExporter, traceparent: str) -> str:
    """Returns the name of the span that a header refers to. The span must belong to the trace of the test."""
    _, trace_of_header, id, _ = traceparent.split("-")
    assert trace_of_header == TRACE
    return next(span.name for span in of_trace(spans) if f"{span.context.span_id:016x}" == id)
