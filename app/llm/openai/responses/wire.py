"""The stream of OpenAI's Responses API, from bytes to parts. Pure: no client, no I/O.

What is said in deltas is told at once. What an item is at its end comes whole, with it or with the whole response, and
makes up for what was not streamed. An event that nobody knows is kept.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from app.llm.openai.responses.items import Items
from app.llm.openai.usage import usage_of
from app.llm.provider import MessageDelta, MessageEnded, MessageStarted, Part, Unknown
from app.llm.raw_json import NULL, decode_text
from app.llm.transport.wire import Wire

# Why a response is incomplete, in our words; any other reason stays as it is.
STOP_REASONS = {
    "content_filter": "refusal",
    "max_output_tokens": "max_tokens",
}

_DELTAS = {
    "response.output_text.delta": "text {}",
    "response.reasoning_text.delta": "thought {}",
    "response.refusal.delta": "refusal {}",
    "response.reasoning_summary_text.delta": "summary {}",
    "response.function_call_arguments.delta": "input",
    "response.custom_tool_call_input.delta": "input",
    "response.mcp_call_arguments.delta": "input",
}
# Events that say how far something is whose end comes with its item.
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


class _Event(Struct, gc=False):
    type: str = ""
    output_index: int = 0
    content_index: int = 0
    summary_index: int = 0
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


_event = msgspec.json.Decoder(_Event)
_response = msgspec.json.Decoder(_Response)


class ResponsesWire(Wire):
    """`failure` is what the server said of it, decoded. `seed` makes ids for calls without one."""

    def __init__(self, request_id: str | None = None, seed: bytes = b"") -> None:
        super().__init__(request_id)
        self._items = Items(seed)
        self._started = False

    def _read_event(self, data: bytes, parts: list[Part]) -> None:
        event = _event.decode(data)
        member = _DELTAS.get(event.type)
        if member is not None and event.delta is not None:
            self._start(None, parts)
            place = event.summary_index if "summary" in member else event.content_index
            self._items.say(event.output_index, member.format(place), event.delta, parts)
        else:
            self._hear_rare(event, data, parts)

    def _read_unexpected(self, said: Any, data: bytes, parts: list[Part]) -> None:
        if isinstance(said, dict) and str(said.get("type")).startswith(_PASSING):
            return
        if isinstance(said, dict) and said.get("error"):
            self.failure = said
        else:
            parts.append(Unknown(decode_text(data)))

    def _hear_rare(self, event: _Event, data: bytes, parts: list[Part]) -> None:
        match event.type:
            case "response.output_item.added":
                self._start(None, parts)
                self._items.open(event.output_index, event.item, parts)
            case "response.output_item.done":
                self._start(None, parts)
                self._items.close(event.output_index, event.item, parts)
            case "response.output_text.annotation.added":
                self._items.annotate(event.output_index, f"text {event.content_index}", event.annotation, parts)
            case "error":
                self.failure = _without_type(msgspec.json.decode(data))
            case "":
                self._hear_whole(data, parts)
            case kind if kind in _BEGUN:
                self._start(_response.decode(event.response).id, parts)
            case kind if kind in _OVER:
                response = _response.decode(event.response)
                response.status = response.status or kind.removeprefix("response.")
                self._finish(response, parts)
            case kind:
                if not kind.startswith(_PASSING):
                    parts.append(Unknown(decode_text(data)))

    def _hear_whole(self, data: bytes, parts: list[Part]) -> None:
        """What has no type is the response itself, which was not streamed, or a failure."""
        response = _response.decode(data)
        if response.object == "response":
            self._finish(response, parts)
        else:
            self._read_unexpected(msgspec.json.decode(data), data, parts)

    def _start(self, id: str | None, parts: list[Part]) -> None:
        if not self._started:
            self._started = True
            self.request_id = self.request_id or id
            parts.append(MessageStarted({}, self.request_id))

    def _finish(self, response: _Response, parts: list[Part]) -> None:
        self._start(response.id, parts)
        usage = usage_of(msgspec.json.decode(response.usage))
        failure = msgspec.json.decode(response.error)
        if failure or response.status in {"failed", "cancelled"}:
            if usage:
                parts.append(MessageDelta(None, usage))
            self.failure = failure or {"message": f"The response has {response.status}.", "code": "server_error"}
            return
        self._items.end(response.output or (), parts)
        parts += (MessageDelta(self._stop_reason(response), usage), MessageEnded())
        self.ended = True

    def _stop_reason(self, response: _Response) -> str:
        if response.status == "incomplete":
            reason = (response.incomplete_details or _Details()).reason or "max_output_tokens"
            return STOP_REASONS.get(reason, reason)
        if self._items.called:
            return "tool_use"
        return "refusal" if self._items.refused else "end_turn"


def _without_type(said: Any) -> Any:
    """A failure that is an event has the type of the event."""
    return {name: value for name, value in said.items() if name != "type"}
