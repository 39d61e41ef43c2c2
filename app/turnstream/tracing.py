"""Spans and metrics of OpenTelemetry, by its conventions for generative AI. They hold names, figures and ids; content
only if the operator asks for it.

Off, a span is one comparison, and nothing of OpenTelemetry is imported. On, spans go to the SDK that the process has
set up (`opentelemetry-instrument`, or an embedding program); without one its API drops them.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import time_ns
from types import TracebackType
from typing import Any, Literal

_log = logging.getLogger(__name__)

Kind = Literal["INTERNAL", "CLIENT", "SERVER", "PRODUCER", "CONSUMER"]


class _Isolated:
    """Around calls of the SDK, whose samplers, processors and propagators are code of others: what they raise costs
    spans, and fails neither turn nor request.
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


class Span:
    """A span that is not recorded."""

    def set(self, **attributes: Any) -> None:
        """Sets attributes: `__` in a name becomes a dot; None is left out."""

    def event(self, name: str, **attributes: Any) -> None: ...
    def failed(self, type: str) -> None: ...


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


_OFF = nullcontext(Span())


class Tracing:
    """The one switch of the process, as logging has one. The extension `otel` calls `begin` once, before anything runs.
    `content` is how many characters of content an attribute may hold: 0 for none.
    """

    def __init__(self) -> None:
        self._api: Any = None
        self._tracer: Any = None
        self.content = 0

    def begin(
        self, tracer: Any, histograms: Mapping[str, Any], content: int, *, trace: Any, propagate: Any, context: Any
    ) -> None:
        """`trace`, `propagate` and `context` are modules of OpenTelemetry's API, `histograms` the metrics by name."""
        self._api, self._propagate, self._contexts = trace, propagate, context
        self._tracer, self._histograms, self.content = tracer, histograms, content

    def end(self) -> None:
        self._tracer, self.content = None, 0

    @property
    def on(self) -> bool:
        return self._tracer is not None

    def span(
        self,
        name: str,
        kind: Kind = "INTERNAL",
        *,
        parent: str | None = None,
        link: str | None = None,
        **attributes: Any,
    ) -> AbstractContextManager[Span]:
        """A span around the block. `parent` and `link` are values of a header `traceparent`. An exception marks it as
        failed by its class; its message may hold content, and is left out.
        """
        return _OFF if self._tracer is None else self._recorded(name, kind, parent, link, attributes)

    @contextmanager
    def _recorded(
        self, name: str, kind: Kind, parent: str | None, link: str | None, attributes: Mapping[str, Any]
    ) -> Iterator[Span]:
        span = self._begun(name, kind, parent, link, attributes)
        recorded = _Recorded(span, self._api.Status(self._api.StatusCode.ERROR))
        token = self._contexts.attach(self._api.set_span_in_context(span))
        try:
            yield recorded
        except Exception as error:
            recorded.failed(getattr(error, "type", type(error).__name__))
            raise
        finally:
            self._contexts.detach(token)
            with _ISOLATED:
                span.end()

    def _begun(self, name: str, kind: Kind, parent: str | None, link: str | None, attributes: Mapping[str, Any]) -> Any:
        with _ISOLATED:
            links = [self._api.Link(context)] if link and (context := self._context_of(link)) else []
            return self._tracer.start_span(
                name,
                context=self._propagate.extract({"traceparent": parent}) if parent else None,
                kind=self._api.SpanKind[kind],
                attributes=_dotted(attributes),
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            )
        return self._api.INVALID_SPAN

    def past(self, name: str, seconds: float) -> None:
        """A span of something that took `seconds` and has just ended, inside the present one."""
        if self._tracer is not None:
            end = time_ns()
            with _ISOLATED:
                self._tracer.start_span(name, start_time=end - int(seconds * 1e9)).end(end)

    def measure(self, name: str, value: float, **attributes: Any) -> None:
        """Records a value of one of the metrics."""
        if self._tracer is not None:
            with _ISOLATED:
                self._histograms[name].record(value, _dotted(attributes))

    def outgoing(self) -> dict[str, str]:
        """The headers that carry the present span to another server; none if nothing is traced."""
        headers: dict[str, str] = {}
        if self._tracer is not None:
            with _ISOLATED:
                self._propagate.inject(headers)
        return headers

    @property
    def traceparent(self) -> str | None:
        """The present span as a header, to be stored with the work that continues it."""
        return self.outgoing().get("traceparent") if self._tracer is not None else None

    def _context_of(self, traceparent: str) -> Any:
        context = self._propagate.extract({"traceparent": traceparent})
        found = self._api.get_current_span(context).get_span_context()
        return found if found.is_valid else None


def trace_id(traceparent: str | None) -> str | None:
    return None if traceparent is None else traceparent.split("-")[1]


def _dotted(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in attributes.items() if value is not None}


TRACING = Tracing()
