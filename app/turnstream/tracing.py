"""The door for spans: the extension `otel` begins the tracing of the process. Off, a span is one comparison."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

Kind = Literal["INTERNAL", "CLIENT", "SERVER", "PRODUCER", "CONSUMER"]


class Span:
    """A span that is not recorded."""

    def set(self, **attributes: Any) -> None:
        """Sets attributes: `__` in a name becomes a dot; None is left out."""

    def event(self, name: str, **attributes: Any) -> None: ...
    def failed(self, type: str) -> None: ...


class Tracer(Protocol):
    """Records spans. Attributes hold names, figures and ids, and at most `content` characters of content: 0 is none."""

    @property
    def content(self) -> int: ...

    def span(
        self, name: str, kind: Kind, parent: str | None, link: str | None, attributes: Mapping[str, Any]
    ) -> AbstractContextManager[Span]: ...

    def model_call(
        self, provider: str, label: str, request: Any, attributes: Mapping[str, Any]
    ) -> AbstractContextManager[Any]:
        """A span around a model call, by the conventions for generative AI (`turnstream.engine.model_spans`)."""
        ...

    def past(self, name: str, seconds: float) -> None: ...

    def outgoing(self) -> dict[str, str]: ...


_OFF = nullcontext(Span())


class Tracing:
    """The one switch of the process, as logging has one. It is set before anything runs."""

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
        """The characters of content that an attribute may hold."""
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
        """A span around the block. `parent` and `link` are values of a header `traceparent`. An exception marks it as
        failed by its class; its message may hold content, and is left out.
        """
        return _OFF if self.tracer is None else self.tracer.span(name, kind, parent, link, attributes)

    def past(self, name: str, seconds: float) -> None:
        """A span of something that took `seconds` and has just ended, inside the present one."""
        if self.tracer is not None:
            self.tracer.past(name, seconds)

    def outgoing(self) -> dict[str, str]:
        """The headers that carry the present span to another server; none if nothing is traced."""
        return {} if self.tracer is None else self.tracer.outgoing()

    @property
    def traceparent(self) -> str | None:
        """The present span as a header, to be stored with the work that continues it."""
        return self.outgoing().get("traceparent")

    def cut(self, text: str) -> str:
        """`text` for an attribute of a span, at its greatest length."""
        return text if len(text) <= self.content else f"{text[: self.content]}…"


def trace_id(traceparent: str | None) -> str | None:
    return None if traceparent is None else traceparent.split("-")[1]


TRACING = Tracing()
