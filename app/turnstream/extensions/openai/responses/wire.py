"""Parses the streams of OpenAI's Responses API: converts events to parts. Pure: no client, no I/O.

A delta becomes a part at once. The final form of an item arrives with the end of the item or with the whole response,
and adds the text that was not streamed. Unknown events are stored.
"""

from collections.abc import Sequence, Set
from typing import Any

import msgspec
from msgspec import Raw, Struct

from turnstream.domain.rounds import RETAINED
from turnstream.extensions.openai.responses.items import Items
from turnstream.extensions.openai.usage import usage_of
from turnstream.libraries.providers.raw_members import NULL, decode_text
from turnstream.libraries.providers.transport.wire import EventSplitter, Wire
from turnstream.llm.provider import MessageDelta, MessageEnded, MessageStarted, Part, Unknown

# Maps the reasons of incomplete responses to our stop reasons; other reasons are passed on unchanged.
STOP_REASONS = {
    "content_filter": "refusal",
    "max_output_tokens": "max_tokens",
}

_DELTAS = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "thought",
    "response.refusal.delta": "refusal",
    "response.reasoning_summary_text.delta": "summary",
    "response.function_call_arguments.delta": "input",
    "response.custom_tool_call_input.delta": "input",
    "response.mcp_call_arguments.delta": "input",
}
_PIECE_BEGINS = frozenset(
    {
        "response.content_part.added",
        "response.reasoning_part.added",
        "response.reasoning_summary_part.added",
    }
)
_PIECE_ENDS = frozenset(
    {
        "response.content_part.done",
        "response.output_text.done",
        "response.reasoning_part.done",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
        "response.reasoning_text.done",
        "response.refusal.done",
    }
)
# Progress events of items. They are ignored, because the end event of an item has all its data.
_PASSING = (
    "response.apply_patch_call",
    "response.audio.",
    "response.code_interpreter_call",
    "response.compaction.",
    "response.content_part.",
    "response.custom_tool_call_input.",
    "response.file_search_call.",
    "response.function_call_arguments.",
    "response.image_generation_call.",
    "response.mcp_call",
    "response.mcp_list_tools.",
    "response.output_text.",
    "response.reasoning_part.",
    "response.reasoning_summary_",
    "response.reasoning_text.",
    "response.refusal.",
    "response.shell_call_",
    "response.web_search_call.",
)
_BEGUN = frozenset({"response.created", "response.in_progress", "response.queued"})
_OVER = frozenset(
    {"response.cancelled", "response.completed", "response.done", "response.failed", "response.incomplete"}
)


def _reference(id: str | None, request: bytes) -> str:
    """Returns the round's `data` about an answer that the provider retains. `request` is the digest of the request."""
    return msgspec.json.encode({RETAINED: {"id": id, "request": request.hex()}}).decode()


class _Event(Struct, gc=False):
    type: str = ""
    sequence_number: int | None = None
    output_index: int | None = 0
    content_index: int | None = 0
    summary_index: int | None = 0
    item_id: str | None = None
    delta: str | None = None
    item: Raw = NULL
    annotation: Raw = NULL
    response: Raw = NULL


class _Details(Struct):
    reason: str | None = None


class _Response(Struct):
    id: str | None = None
    object: str | None = None
    status: str | None = None
    output: list[Raw] | None = None
    usage: Raw = NULL
    error: Raw = NULL
    incomplete_details: _Details | None = None


_READ = msgspec.json.encode({RETAINED: None}).decode()
_event = msgspec.json.Decoder(_Event)
_response = msgspec.json.Decoder(_Response)


class ResponsesWire(Wire):
    """Parses one stream. `failure` is the decoded failure that the provider reported. Missing ids of calls are
    generated from `seed`. `offered` are the names of the request's tools, or None if the names are unknown. With
    `retains`, the provider retains the answer under the id `retained`, and `sequence` is the number of the last event.
    `response_id` and `output` belong to the whole answer, and are set at its end.
    """

    def __init__(
        self,
        request_id: str | None = None,
        seed: bytes = b"",
        offered: Set[str] | None = None,
        *,
        retains: bool = False,
    ) -> None:
        super().__init__(request_id)
        self._items = Items(seed, offered)
        self._started = False
        self._seed = seed
        self._retains = retains
        self.response_id: str | None = None
        self.output: Sequence[Raw] = ()
        self.retained: str | None = None
        self.sequence = -1

    @property
    def called(self) -> bool:
        return self._items.called

    def read_again(self) -> None:
        """Continues with another stream, starting after the last event."""
        self._splitter = EventSplitter()

    def _read_event(self, data: bytes, parts: list[Part]) -> None:
        event = _event.decode(data)
        if event.sequence_number is not None:
            if self._retains and event.sequence_number <= self.sequence:
                return
            self.sequence = event.sequence_number
        member = _DELTAS.get(event.type)
        if member is not None and event.delta is not None:
            self._start(None, parts)
            number = event.summary_index if member == "summary" else event.content_index
            self._items.append(event.output_index or 0, event.item_id, member, number, event.delta, parts)
        else:
            self._read_rare(event, data, parts)

    def _read_unexpected(self, value: Any, data: bytes, parts: list[Part]) -> None:
        if isinstance(value, dict) and str(value.get("type")).startswith(_PASSING):
            return
        if isinstance(value, dict) and value.get("error"):
            self.failure = value
        else:
            parts.append(Unknown(decode_text(data)))

    def _read_rare(self, event: _Event, data: bytes, parts: list[Part]) -> None:
        match event.type:
            case "response.output_item.added":
                self._start(None, parts)
                self._items.open(event.output_index or 0, event.item, parts)
            case "response.output_item.done":
                self._start(None, parts)
                self._items.close(event.output_index or 0, event.item, parts)
            case "response.output_text.annotation.added":
                place, number = event.output_index or 0, event.content_index
                self._items.annotate(place, event.item_id, number, event.annotation, parts)
            case kind if kind in _PIECE_BEGINS:
                self._items.announce(event.output_index or 0, event.item_id)
            case kind if kind in _PIECE_ENDS:
                self._items.end_piece(event.output_index or 0, event.item_id)
            case "error":
                # The member `type` is the type of the event, not of the failure.
                members = msgspec.json.decode(data)
                self.failure = {name: value for name, value in members.items() if name != "type"}
            case "":
                # A server that does not stream sends the whole response, or a failure.
                response = _response.decode(data)
                if response.object == "response":
                    self._finish(response, parts)
                else:
                    self._read_unexpected(msgspec.json.decode(data), data, parts)
            case kind if kind in _BEGUN:
                self._start(_response.decode(event.response).id, parts)
            case kind if kind in _OVER:
                response = _response.decode(event.response)
                response.status = response.status or kind.removeprefix("response.")
                self._finish(response, parts)
            case kind:
                if not kind.startswith(_PASSING):
                    parts.append(Unknown(decode_text(data)))

    def _start(self, id: str | None, parts: list[Part]) -> None:
        if not self._started:
            self._started = True
            self.request_id = self.request_id or id
            if self._retains:
                self.retained = id
            parts.append(MessageStarted({}, self.request_id, _reference(id, self._seed) if self.retained else None))

    def _finish(self, response: _Response, parts: list[Part]) -> None:
        self._start(response.id, parts)
        usage = usage_of(msgspec.json.decode(response.usage))
        failure = msgspec.json.decode(response.error)
        if failure or response.status in {"failed", "cancelled"}:
            if usage or self.retained:
                parts.append(MessageDelta(None, usage, _READ if self.retained else None))
            self.failure = failure or {"message": f"The response has {response.status}.", "code": "server_error"}
            return
        self._items.end(response.output or (), parts)
        self.response_id, self.output = response.id, response.output or ()
        stop_reason = "tool_use" if self._items.called else "refusal" if self._items.refused else "end_turn"
        if response.status == "incomplete":
            reason = (response.incomplete_details or _Details()).reason or "max_output_tokens"
            stop_reason = STOP_REASONS.get(reason, reason)
        parts += (MessageDelta(stop_reason, usage, _READ if self.retained else None), MessageEnded())
        self.ended = True
