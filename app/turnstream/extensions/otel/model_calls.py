"""The span and the metrics of a model call, by OpenTelemetry's conventions for generative AI."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from time import perf_counter
from typing import Any

import msgspec

from turnstream.domain.blocks import Block
from turnstream.domain.errors import ProviderError
from turnstream.domain.kinds import TOOL_RESULT, TOOL_USE
from turnstream.domain.rounds import billed_tokens
from turnstream.engine.metrics import error_label
from turnstream.engine.model_spans import CallSpan
from turnstream.llm.provider import Message, ModelRequest
from turnstream.tracing import TRACING, Span, Tracer


class RecordedCall(CallSpan):
    """Records the outcome of one model call. `measure` records a value of a metric, given the metric's name and labels.
    `labels` are the labels of this call.
    """

    def __init__(self, span: Span, measure: Callable[..., None], labels: Mapping[str, Any]) -> None:
        self._span = span
        self._measure = measure
        self._labels = labels

    def answered(
        self,
        stop_reason: str | None,
        usage: Mapping[str, Any],
        blocks: Iterable[Block],
        request_id: str | None = None,
        seconds_to_first_delta: float | None = None,
    ) -> None:
        tokens = billed_tokens(usage)
        input = tokens.input + tokens.cache_read + tokens.cache_write
        self._span.set(
            gen_ai__response__id=request_id,
            gen_ai__response__finish_reasons=(stop_reason or "end_turn",),
            gen_ai__response__time_to_first_chunk=seconds_to_first_delta,
            gen_ai__usage__input_tokens=input,
            gen_ai__usage__cache_read__input_tokens=tokens.cache_read or None,
            gen_ai__usage__cache_creation__input_tokens=tokens.cache_write or None,
            gen_ai__usage__output_tokens=tokens.output,
        )
        if TRACING.content:
            self._span.set(gen_ai__output__messages=_as_json([Message("assistant", tuple(blocks))]))
        for type, count in (("input", input), ("output", tokens.output)):
            self._measure("gen_ai.client.token.usage", count, gen_ai__token__type=type, **self._labels)
        if seconds_to_first_delta is not None:
            name = "gen_ai.client.operation.time_to_first_chunk"
            self._measure(name, seconds_to_first_delta, **self._labels)


@contextmanager
def recorded_call(
    tracer: Tracer,
    measure: Callable[..., None],
    provider: str,
    label: str,
    request: ModelRequest,
    attributes: Mapping[str, Any],
) -> Iterator[CallSpan]:
    labels = {"gen_ai__operation__name": "chat", "gen_ai__provider__name": provider, "gen_ai__request__model": label}
    start = perf_counter()
    of_span = {**labels, "gen_ai__request__model": request.model, **attributes}
    with tracer.span(f"chat {request.model}", "CLIENT", None, None, of_span) as span:
        if TRACING.content:
            new = [*takewhile(lambda message: message.role != "assistant", reversed(request.messages))][::-1]
            system = request.system and [{"type": "text", "content": TRACING.cut(request.system)}]
            instructions = system and msgspec.json.encode(system).decode()
            span.set(gen_ai__input__messages=_as_json(new), gen_ai__system_instructions=instructions)
        try:
            yield RecordedCall(span, measure, labels)
        except (ProviderError, TimeoutError) as error:
            failed = {**labels, "error__type": error_label(error)}
            measure("gen_ai.client.operation.duration", perf_counter() - start, **failed)
            raise
    measure("gen_ai.client.operation.duration", perf_counter() - start, **labels)


def _as_json(messages: Sequence[Message]) -> str:
    """Returns the texts of messages as JSON. If the texts exceed the limit, only the last texts are kept."""
    room, found = TRACING.content, []
    for message in reversed(messages):
        parts = []
        for block in reversed(message.blocks):
            if room > 0:
                parts.append(_part(block, block.text if len(block.text) <= room else f"{block.text[:room]}…"))
                room -= len(block.text)
        if parts:
            found.append({"role": message.role, "parts": parts[::-1]})
    return msgspec.json.encode(found[::-1]).decode()


def _part(block: Block, text: str) -> Mapping[str, object]:
    if block.type == TOOL_USE:
        return {"type": "tool_call", "id": block.tool_use_id, "name": block.name, "arguments": text}
    if block.type == TOOL_RESULT:
        return {"type": "tool_call_response", "id": block.tool_use_id, "response": text}
    return {"type": block.type, "content": text}
