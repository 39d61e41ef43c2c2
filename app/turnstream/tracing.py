"""The interface for spans. Until the extension `otel` starts the tracing, a span costs only one comparison."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

Kind = Literal["INTERNAL", "CLIENT", "SERVER", "PRODUCER", "CONSUMER"]


class Span:
    """A span that is not recorded."""

    def set(self, **attributes: Any) -> None:
        """Sets attributes: `__` in a name becomes a dot, and an attribute that is None is omitted."""

    def event(self, name: str, **attributes: Any) -> None: ...
    def failed(self, type: str) -> None: ...


class Tracer(Protocol):
    """Records spans. Attributes have names, figures and ids, and at most `content` characters of content (0: none)."""

    @property
    def content(self) -> int: ...

    def span(
        self, name: str, kind: Kind, parent: str | None, link: str | None, attributes: Mapping[str, Any]
    ) -> AbstractContextManager[Span]: ...

    def model_call(
        self, provider: str, label: str, request: Any, attributes: Mapping[str, Any]
    ) -> AbstractContextManager[Any]:
        """Returns a model call's span by the conventions for generative AI (`turnstream.engine.model_spans`)."""
        ...

    def past(self, name: str, seconds: float) -> None: ...

    def outgoing(self) -> dict[str, str]: ...


_OFF = nullcontext(Span())


class Tracing:
    """The tracing of the process. There is one object for all modules, which is set before anything runs."""

    def __init__(self) -> None:
        self.tracer: Tracer | None = None

    def begin(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def end(self) -> None:
        self.tracer = None

    @property
    def on(self) -> bool:
        return self.tracer is not None

    @property
    def content(self) -> int:
        """Most characters of content in an attribute."""
        return 0 if self.tracer is None else self.tracer.content

    def span(
        self,
        name: str,
        kind: Kind = "INTERNAL",
        *,
        parent: str | None = None,
        link: str | None = None,
        **attributes: Any,
    ) -> AbstractContextManager[Span]:
        """Returns a span around the block. `parent` and `link` are values of a header `traceparent`. An exception marks
        the span as failed, by the class of the exception; the message is omitted, because it may have content.
        """
        return _OFF if self.tracer is None else self.tracer.span(name, kind, parent, link, attributes)

    def past(self, name: str, seconds: float) -> None:
        """Records a span of work that took `seconds` and has just ended, as a child of the present span."""
        if self.tracer is not None:
            self.tracer.past(name, seconds)

    def outgoing(self) -> dict[str, str]:
        """Returns the headers that carry the present span to another server; none if nothing is traced."""
        return {} if self.tracer is None else self.tracer.outgoing()

    @property
    def traceparent(self) -> str | None:
        """The `traceparent` of the present span, to be stored with the work that continues the span."""
        return self.outgoing().get("traceparent")

    def cut(self, text: str) -> str:
        """Returns `text`, truncated to the most characters of content in an attribute."""
        return text if len(text) <= self.content else f"{text[: self.content]}…"


def trace_id(traceparent: str | None) -> str | None:
    return None if traceparent is None else traceparent.split("-")[1]


TRACING = Tracing()
