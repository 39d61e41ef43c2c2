"""The span of a model call and its metrics. Without a tracer nothing is recorded."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from turnstream.domain.blocks import Block
from turnstream.llm.provider import ModelRequest
from turnstream.tracing import TRACING


class CallSpan:
    """The span of an unrecorded call."""

    def answered(
        self,
        stop_reason: str | None,
        usage: Mapping[str, Any],
        blocks: Iterable[Block],
        request_id: str | None = None,
        seconds_to_first_delta: float | None = None,
    ) -> None:
        """Records the reply with these blocks."""


_OFF = nullcontext(CallSpan())


def model_call(provider: str, label: str, request: ModelRequest, **attributes: Any) -> AbstractContextManager[CallSpan]:
    """A span around a model call. `label` is the model in metrics: never a text of a client."""
    tracer = TRACING.tracer
    return _OFF if tracer is None else tracer.model_call(provider, label, request, attributes)
