"""The span of a model call, with its metrics. Nothing is recorded if the process has no tracer."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from turnstream.domain.blocks import Block
from turnstream.llm.provider import ModelRequest
from turnstream.tracing import TRACING


class CallSpan:
    """The span of a call that is not recorded."""

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
    """Returns a span around a model call. `label` names the model in metrics, and is never text from a client."""
    tracer = TRACING.tracer
    return _OFF if tracer is None else tracer.model_call(provider, label, request, attributes)
