"""Values to JSON: the SSE frames of the stream and the JSON of the API, in the same words."""

from collections.abc import Mapping
from typing import Any, assert_never

import msgspec
from pydantic_core import from_json

from app.domain.blocks import Block
from app.domain.cursor import Cursor
from app.domain.degraded import Degraded
from app.domain.events import (
    ActionRequired,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    Notice,
    RequiredAction,
    Reset,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
)
from app.domain.kinds import TEXT, THINKING, TOOL_RESULT, TOOL_USE
from app.domain.results import count_files
from app.domain.turns import Status, TurnError

_END_EVENTS: Mapping[Status, str] = {
    "complete": "turn_complete",
    "cancelled": "turn_cancelled",
    "error": "turn_error",
}
# Members of the provider's object that the block says under its own name, or that say nothing to a client.
_SAID_ELSEWHERE = frozenset({"type", "id", "name", "input", "text", "thinking", "tool_use_id"})

_encode = msgspec.json.Encoder().encode


def to_json(value: object) -> bytes:
    return _encode(value)


def frame(event: Event | Notice, cursor: Cursor | None) -> bytes:
    """One SSE frame. `cursor` is the position after the event; None for what has no position."""
    if event.__class__ is BlockDelta:  # the token path
        assert isinstance(event, BlockDelta)
        return b'id: %d-%d-%d\nevent: block_delta\ndata: {"index":%d,"offset":%d,"text":%b}\n\n' % (
            *(cursor or Cursor()),
            event.index,
            event.offset,
            _encode(event.text),
        )
    name, data = named(event)
    position = b"" if cursor is None else b"id: %d-%d-%d\n" % cursor
    return b"%bevent: %b\ndata: %b\n\n" % (position, name.encode(), _encode(data))


def named(event: Event | Notice) -> tuple[str, Mapping[str, Any]]:
    """The event's name, and its data as JSON values."""
    match event:
        case TurnStart():
            return "turn_start", {
                "turn": event.turn,
                "chat": event.chat,
                "model": event.model,
                "attempt": event.turn_attempt,
                "status": event.status,
            }
        case RoundStart():
            return "round_start", {"round": event.round, "messages": event.messages, "answered": event.answered}
        case BlockStart():
            return "block_start", _start_json(event)
        case BlockDelta():
            return "block_delta", {"index": event.index, "offset": event.offset, "text": event.text}
        case BlockStop(block=block):
            return "block_stop", {"index": block.index, **block_details(block)}
        case RoundStop():
            return "round_stop", {"round": event.round, "stop_reason": event.stop_reason, "usage": event.usage}
        case ActionRequired():
            return "action_required", {"round": event.round, "calls": list(map(required_action_json, event.actions))}
        case TurnEnd():
            return _END_EVENTS[event.status], _end_json(event)
        case Reset():
            return "reset", {"attempt": event.attempt, "index": event.index}
        case Notice():
            return event.name, event.data
        case _:
            assert_never(event)


def _start_json(start: BlockStart) -> dict[str, Any]:
    data: dict[str, Any] = {"index": start.index, "round": start.round, "type": start.type}
    return data | identity_json(start.type, start.tool_use_id, start.name)


def identity_json(type: str, tool_use_id: str | None, name: str | None) -> dict[str, Any]:
    """A call has an `id`; a result names the call it answers as `tool_use_id`. Both name the tool."""
    if tool_use_id is None and name is None:
        return {}
    key = "tool_use_id" if type == TOOL_RESULT else "id"
    return {key: tool_use_id, "name": name}


def _end_json(end: TurnEnd) -> dict[str, Any]:
    data: dict[str, Any] = {"stop_reason": end.stop_reason, "usage": end.usage}
    if end.degraded:
        data["degraded"] = list(map(degraded_json, end.degraded))
    if end.phase is not None:
        data["phase"] = end.phase
    return data | ({"error": error_json(end.error)} if end.error else {})


def required_action_json(wanted: RequiredAction) -> dict[str, Any]:
    return {
        "tool_use_id": wanted.tool_use_id,
        "name": wanted.name,
        "type": wanted.kind,
        "input": input_of(wanted.input),
        "input_digest": wanted.digest,
        "expires_at": wanted.expires_at,
    }


def degraded_json(degraded: Degraded) -> dict[str, Any]:
    return {"what": degraded.what, "index": degraded.index, "tool": degraded.tool}


def error_json(error: TurnError | None) -> dict[str, Any] | None:
    return None if error is None else {"type": error.type, "message": error.message, "request_id": error.request_id}


def block_details(block: Block) -> dict[str, Any]:
    """What deltas cannot carry: parsed input, signature, citations, is_error, interrupted, and `data` for the rest."""
    details: dict[str, Any] = {}
    if block.type.endswith("tool_use") and not block.interrupted:
        details["input"] = input_of(block.text)
    if block.type == TOOL_RESULT:
        details["is_error"] = block.is_error
    if block.interrupted:
        details["interrupted"] = True
    if block.notes is not None:
        details["notes"] = parsed(block.notes)
    if block.data is not None:
        details |= _from_data(block)
    return details


def input_of(text: str) -> Any:
    """The input as the model wrote it: parsed where it is JSON, else its text."""
    return {} if text.strip() == "" else parsed(text)


def _from_data(block: Block) -> dict[str, Any]:
    members = parsed(block.data or "{}")
    if block.type == TOOL_RESULT:
        return {"content": members["content"]} if count_files(block) else {}
    if block.type in (TEXT, THINKING, TOOL_USE):
        return {key: value for key, value in members.items() if key not in _SAID_ELSEWHERE and value is not None}
    return {"data": members}


def output_text(output: Any) -> str:
    """What a client tool returned, as the model is told it."""
    if output is None:
        return ""
    return output if isinstance(output, str) else to_json(output).decode()


def parsed(text: str) -> Any:
    """The value, or the text itself where it is no JSON or is nested too deeply to be written again."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


def block_json(block: Block) -> dict[str, Any]:
    """A whole block, as the API shows it: the same words as the stream's events for it, put together."""
    data: dict[str, Any] = {"index": block.index, "round": block.round, "type": block.type}
    data |= identity_json(block.type, block.tool_use_id, block.name)
    return data | {"text": block.text} | block_details(block)
