"""Spans and metrics of OpenTelemetry, by its conventions for generative AI. They hold names, figures and ids; content
only where the operator asks for it.

Off, a span is one comparison, and nothing of OpenTelemetry is imported. On, spans go to the SDK that the process has
set up (`opentelemetry-instrument`, or an embedding program); without one its API drops them.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from time import time_ns
from typing import Any, Literal

Kind = Literal["INTERNAL", "CLIENT", "SERVER", "PRODUCER", "CONSUMER"]

# The metrics of the conventions, with the boundaries that these advise.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(4.0**power for power in range(14))
_HISTOGRAMS = {
    "gen_ai.client.operation.duration": ("s", "GenAI operation duration.", _SECONDS),
    "gen_ai.client.operation.time_to_first_chunk": ("s", "Time to receive the first chunk.", _SECONDS),
    "gen_ai.client.token.usage": ("{token}", "Number of input and output tokens used.", _TOKENS),
}


class Span:
    """A span that is not recorded."""

    def set(self, **attributes: Any) -> None:
        """Sets attributes: `__` in a name stands for a dot; None is left out."""

    def event(self, name: str, **attributes: Any) -> None: ...
    def failed(self, type: str) -> None: ...


class _Recorded(Span):
    def __init__(self, span: Any, error: Any) -> None:
        self._span = span
        self._error = error

    def set(self, **attributes: Any) -> None:
        self._span.set_attributes(_dotted(attributes))

    def event(self, name: str, **attributes: Any) -> None:
        self._span.add_event(name, _dotted(attributes))

    def failed(self, type: str) -> None:
        self._span.set_attribute("error.type", type)
        self._span.set_status(self._error)


_OFF = nullcontext(Span())


class Tracing:
    """The one switch of the process, as logging has one. `begin` is called once, before anything runs. `content` is how
    many characters of content an attribute may hold: 0 for none.
    """

    def __init__(self) -> None:
        self._api: Any = None
        self._tracer: Any = None
        self.content = 0

    def begin(self, content: int = 0) -> None:
        from opentelemetry import metrics, propagate, trace  # noqa: PLC0415, a server without traces does not load it

        self._api, self._propagate = trace, propagate
        self._tracer = trace.get_tracer("turnstream", version("turnstream"))
        meter = metrics.get_meter("turnstream", version("turnstream"))
        self._histograms = {
            name: meter.create_histogram(name, unit, words, explicit_bucket_boundaries_advisory=boundaries)
            for name, (unit, words, boundaries) in _HISTOGRAMS.items()
        }
        self.content = content

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
        links = [self._api.Link(context)] if link and (context := self._context_of(link)) else []
        with self._tracer.start_as_current_span(
            name,
            context=self._propagate.extract({"traceparent": parent}) if parent else None,
            kind=self._api.SpanKind[kind],
            attributes=_dotted(attributes),
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            recorded = _Recorded(span, self._api.Status(self._api.StatusCode.ERROR))
            try:
                yield recorded
            except Exception as error:
                recorded.failed(getattr(error, "type", type(error).__name__))
                raise

    def past(self, name: str, seconds: float) -> None:
        """A span of something that took `seconds` and has just ended, inside the present one."""
        if self._tracer is not None:
            end = time_ns()
            self._tracer.start_span(name, start_time=end - int(seconds * 1e9)).end(end)

    def measure(self, name: str, value: float, **attributes: Any) -> None:
        """Records a value of one of the metrics."""
        if self._tracer is not None:
            self._histograms[name].record(value, _dotted(attributes))

    def outgoing(self) -> dict[str, str]:
        """The headers that carry the present span to another server; none where nothing is traced."""
        headers: dict[str, str] = {}
        if self._tracer is not None:
            self._propagate.inject(headers)
        return headers

    @property
    def traceparent(self) -> str | None:
        """The present span as a header, to be stored with what goes on from it."""
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
