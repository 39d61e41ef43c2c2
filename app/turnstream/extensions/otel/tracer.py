"""Spans and metrics of OpenTelemetry, by its conventions for generative AI. Spans and values are sent to the SDK of the
process (set up by `opentelemetry-instrument`, or an embedding program); without an SDK, the API drops them.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from time import time_ns
from types import TracebackType
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.metrics import Histogram

from turnstream.engine.model_spans import CallSpan
from turnstream.extensions.otel.model_calls import recorded_call
from turnstream.llm.provider import ModelRequest
from turnstream.tracing import Kind, Span

_log = logging.getLogger(__name__)


class _Isolated:
    """Encloses calls of the SDK, because samplers, processors and propagators are foreign code. If they raise an
    exception, spans are lost, but no turn and no request fails.
    """

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        _log.warning("OpenTelemetry failed, and a span or a measurement is lost: %r", error)
        return True


_ISOLATED = _Isolated()


class _Recorded(Span):
    def __init__(self, span: Any, error: Any) -> None:
        self._span = span
        self._error = error

    def set(self, **attributes: Any) -> None:
        with _ISOLATED:
            self._span.set_attributes(_dotted(attributes))

    def event(self, name: str, **attributes: Any) -> None:
        with _ISOLATED:
            self._span.add_event(name, _dotted(attributes))

    def failed(self, type: str) -> None:
        with _ISOLATED:
            self._span.set_attribute("error.type", type)
            self._span.set_status(self._error)


class OtelTracer:
    """The tracer of the process. `content` is the maximum number of characters of content in an attribute. `histograms`
    are the metrics by name.
    """

    def __init__(self, tracer: trace.Tracer, histograms: Mapping[str, Histogram], content: int) -> None:
        self._tracer = tracer
        self._histograms = histograms
        self.content = content

    def model_call(
        self, provider: str, label: str, request: ModelRequest, attributes: Mapping[str, Any]
    ) -> AbstractContextManager[CallSpan]:
        return recorded_call(self, self.measure, provider, label, request, attributes)

    @contextmanager
    def span(
        self, name: str, kind: Kind, parent: str | None, link: str | None, attributes: Mapping[str, Any]
    ) -> Iterator[Span]:
        span = self._begun(name, kind, parent, link, attributes)
        recorded = _Recorded(span, trace.Status(trace.StatusCode.ERROR))
        token = context.attach(trace.set_span_in_context(span))
        try:
            yield recorded
        except Exception as error:
            recorded.failed(getattr(error, "type", type(error).__name__))
            raise
        finally:
            context.detach(token)
            with _ISOLATED:
                span.end()

    def _begun(self, name: str, kind: Kind, parent: str | None, link: str | None, attributes: Mapping[str, Any]) -> Any:
        with _ISOLATED:
            links = [trace.Link(origin)] if link and (origin := self._context_of(link)) else []
            return self._tracer.start_span(
                name,
                context=propagate.extract({"traceparent": parent}) if parent else None,
                kind=trace.SpanKind[kind],
                attributes=_dotted(attributes),
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            )
        return trace.INVALID_SPAN

    def past(self, name: str, seconds: float) -> None:
        end = time_ns()
        with _ISOLATED:
            self._tracer.start_span(name, start_time=end - int(seconds * 1e9)).end(end)

    def measure(self, name: str, value: float, **attributes: Any) -> None:
        """Records a value of one of the metrics."""
        with _ISOLATED:
            self._histograms[name].record(value, _dotted(attributes))

    def outgoing(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        with _ISOLATED:
            propagate.inject(headers)
        return headers

    def _context_of(self, traceparent: str) -> Any:
        found = trace.get_current_span(propagate.extract({"traceparent": traceparent})).get_span_context()
        return found if found.is_valid else None


def _dotted(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in attributes.items() if value is not None}
