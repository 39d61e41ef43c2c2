"""Encodes domain values (blocks, actions, errors) as JSON, with the same members in the streams and in the API."""

from dataclasses import asdict
from typing import Any

import msgspec
from pydantic_core import from_json

from turnstream.domain.blocks import Block
from turnstream.domain.degraded import Degraded
from turnstream.domain.events import RequiredAction
from turnstream.domain.kinds import TEXT, THINKING, TOOL_RESULT, TOOL_USE
from turnstream.domain.results import count_files
from turnstream.domain.turns import TurnError
from turnstream.kit.json_values import has_too_many_values

# Members of the provider's object that a block sends under its own names, or that are of no use to a client.
_SENT_ELSEWHERE = frozenset({"type", "id", "name", "input", "text", "thinking", "tool_use_id"})

to_json = msgspec.json.Encoder().encode


def identity_json(type: str, tool_use_id: str | None, name: str | None) -> dict[str, Any]:
    """Returns the ids of a block: `id` for a call, the call's `tool_use_id` for a result, and the tool's `name`."""
    if tool_use_id is None and name is None:
        return {}
    key = "tool_use_id" if type == TOOL_RESULT else "id"
    return {key: tool_use_id, "name": name}


def required_action_json(action: RequiredAction) -> dict[str, Any]:
    return {
        "tool_use_id": action.tool_use_id,
        "name": action.name,
        "type": action.kind,
        "input": input_of(action.input),
        "input_digest": action.digest,
        "expires_at": action.expires_at,
        "can_remember": action.can_remember,
    }


def degraded_json(degraded: Degraded) -> dict[str, Any]:
    return asdict(degraded)


def error_json(error: TurnError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"type": error.type, "message": error.message, "request_id": error.request_id, "details": error.details}


def block_details(block: Block) -> dict[str, Any]:
    """Returns what deltas cannot carry: parsed input, signature, citations, is_error, interrupted, notes and `data`."""
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
    if block.client_data is not None:
        details["data"] = parsed(block.client_data)
    return details


def input_of(text: str) -> Any:
    """Returns the input of a call as parsed JSON. Returns the text itself if it is not JSON, or has too many values."""
    if has_too_many_values(text):
        return text
    return {} if text.strip() == "" else parsed(text)


def _from_data(block: Block) -> dict[str, Any]:
    members = parsed(block.data or "{}")
    if block.type == TOOL_RESULT:
        return {"content": members["content"]} if count_files(block) else {}
    if block.type in (TEXT, THINKING, TOOL_USE):
        return {key: value for key, value in members.items() if key not in _SENT_ELSEWHERE and value is not None}
    return {"data": members}


def output_text(output: Any) -> str:
    """Converts the output of a client tool to text for the model."""
    if output is None:
        return ""
    return output if isinstance(output, str) else to_json(output).decode()


def parsed(text: str) -> Any:
    """Parses JSON text. Returns the text itself if it is not JSON, or is nested too deeply to be encoded again."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


def block_json(block: Block) -> dict[str, Any]:
    """Returns a block as the API shows it: with the members of all its events in the stream."""
    data: dict[str, Any] = {"index": block.index, "round": block.round, "type": block.type}
    data |= identity_json(block.type, block.tool_use_id, block.name)
    return data | {"text": block.text} | block_details(block)
