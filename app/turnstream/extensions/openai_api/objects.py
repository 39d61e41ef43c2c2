"""Responses, items and usage in the form of OpenAI's API, and their ids."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import UUID

import msgspec

from turnstream.api.codec import block_details, parsed
from turnstream.domain.blocks import Block
from turnstream.domain.events import TurnEnd
from turnstream.domain.kinds import TEXT
from turnstream.domain.rounds import BilledTokens, billed_tokens
from turnstream.domain.turns import ToolSpec, Turn
from turnstream.libraries.dialects.failures import failure_class
from turnstream.libraries.dialects.projection import Runner

Json = dict[str, Any]

# The label of this server's tools, and of the tools of the model's provider.
SERVER, PROVIDER = "turnstream", "provider"

# Separates the name of a tool from the name of its namespace, because models use a single name. Names for models have
# only letters, digits, _ and -.
_IN = "--in--"
# The schema of a custom tool. Its input is any text, which becomes a member because models call functions with JSON.
CUSTOM: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as text."}},
    "required": ["input"],
    "additionalProperties": False,
}

# OpenAI's names for the stop reasons of incomplete answers, and for the failures of structured turns.
_CUT_OFF = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
}

_RESPONSE = re.compile("resp_([0-9a-f]{32})([0-9a-f]{32})(?:_([1-9][0-9]{0,5}))?")
_ITEM = re.compile("[a-z]+_([0-9a-f]{32})([0-9a-f]{32})(?:_([0-9]{1,9})(?:_([0-9]{1,9}))?)?")
_CONVERSATION = re.compile("conv_([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class ResponseId:
    """The id of a response. A response is a turn, or a part of a turn between two waits for the client; `part` counts
    the waits before it.
    """

    chat: UUID
    turn: UUID
    part: int = 0

    @classmethod
    def of(cls, turn: Turn, part: int = 0) -> Self:
        return cls(turn.chat_id, turn.id, part)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        found = _RESPONSE.fullmatch(text)
        return cls(UUID(found[1]), UUID(found[2]), int(found[3] or 0)) if found else None

    def __str__(self) -> str:
        part = f"_{self.part}" if self.part else ""
        return f"resp_{self.chat.hex}{self.turn.hex}{part}"


def item_id(prefix: str, turn: Turn, *place: int) -> str:
    """Returns the id of an item. The id contains the turn, and for an assistant's item the index and the attempt of its
    block, so that an item that replaces a voided item has another id.
    """
    return "_".join([f"{prefix}_{turn.chat_id.hex}{turn.id.hex}", *map(str, place)])


def approval_id(turn: Turn, call: Block) -> str:
    return item_id("mcpr", turn, call.index, call.attempt)


def turn_of_item(id: object) -> tuple[UUID, UUID, int | None] | None:
    """Returns the chat, the turn and the block of the item with this id, or None if the id is not of this server."""
    found = _ITEM.fullmatch(id) if isinstance(id, str) else None
    return (UUID(found[1]), UUID(found[2]), int(found[3]) if found[3] else None) if found else None


def conversation_id(chat: UUID) -> str:
    return f"conv_{chat.hex}"


def chat_of_conversation(id: str) -> UUID | None:
    found = _CONVERSATION.fullmatch(id)
    return UUID(found[1]) if found else None


def parts_of(turn: Turn) -> int:
    """Returns the number of responses in a turn: one, plus one for each round with answers of the client."""
    return 1 + len({ask.round for ask in turn.asks if ask.is_marked and ask.answer is not None})


# --- responses -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponseState:
    """The current state of a response. `status` is in OpenAI's terms."""

    status: str = "in_progress"
    output: Sequence[Json] = ()
    usages: Sequence[Mapping[str, Any]] = ()
    reason: str | None = None
    error: Json | None = None


def failure_of(type: str) -> tuple[int, str, str]:
    """Returns the status, type and code of a turn's failure, by which the SDKs choose the class of their error."""
    match failure_class(type):
        case "account":
            return 502, "server_error", "server_error"
        case "rate_limit":
            return 429, "rate_limit_error", "rate_limit_exceeded"
        case "overloaded":
            return 503, "server_error", "server_is_overloaded"
        case "too_long":
            return 400, "invalid_request_error", type
        case "refused":
            return 400, "invalid_request_error", "invalid_prompt" if type.startswith("http_") else type
        case "server":
            return 500, "server_error", "server_error"


def state_of(end: TurnEnd, is_structured: bool) -> ResponseState:
    if is_structured and end.error is not None and (reason := _CUT_OFF.get(end.error.type)):
        return ResponseState("incomplete", reason=reason)
    if end.error is not None:
        _, type, code = failure_of(end.error.type)
        error = {"code": code, "message": end.error.message, "type": type, "param": None, **end.error.wait}
        return ResponseState("failed", error=error)
    if end.status == "cancelled":
        return ResponseState("cancelled")
    if not is_structured and (reason := _CUT_OFF.get(end.stop_reason or "")):
        return ResponseState("incomplete", reason=reason)
    return ResponseState("completed")


def response_json(
    turn: Turn, part: int, state: ResponseState, previous: str | None = None, *, stored: bool = True
) -> Json:
    """Returns the response object. `previous` is the id of the previous response."""
    request = turn.request
    assert request is not None
    assert turn.created_at is not None
    params, ended = request.params, state.status not in {"queued", "in_progress"}
    choice = params.get("tool_choice") or {}
    completed = turn.ended_at.timestamp() if ended and turn.ended_at else None
    return {
        "id": str(ResponseId.of(turn, part)),
        "object": "response",
        "created_at": int(turn.created_at.timestamp()),
        "completed_at": completed and int(completed),
        "status": state.status,
        "background": True,
        "conversation": {"id": conversation_id(turn.chat_id)},
        "error": state.error,
        "incomplete_details": {"reason": state.reason} if state.reason else None,
        "instructions": request.system,
        "max_output_tokens": params.get("max_tokens"),
        "max_tool_calls": request.limits.max_calls,
        "metadata": dict(request.labels),
        "model": request.model,
        "output": list(state.output),
        "parallel_tool_calls": params.get("parallel_tool_calls") is not False,
        "previous_response_id": str(ResponseId.of(turn, part - 1)) if part else previous,
        "reasoning": {"effort": _effort(params), "summary": None},
        "store": stored,
        "temperature": params.get("temperature"),
        "text": {"format": text_format(turn)},
        "tool_choice": _tool_choice(choice),
        "tools": [_function(spec) for spec in request.tools if spec.client],
        "top_p": params.get("top_p"),
        "truncation": "auto",
        "usage": usage_json(state.usages) if ended else None,
    }


def text_format(turn: Turn) -> Json:
    output = turn.request.output if turn.request else None
    if output is None:
        return {"type": "text"}
    return {"type": "json_schema", "name": output.name, "schema": parsed(output.schema), "strict": True}


def usage_json(usages: Sequence[Mapping[str, Any]]) -> Json:
    """Returns the sum of the usage of several model calls."""
    tokens = total_tokens(usages)
    read = tokens.input + tokens.cache_read + tokens.cache_write
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": tokens.cache_read, "cache_write_tokens": tokens.cache_write},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens(usages)},
        "total_tokens": read + tokens.output,
    }


def total_tokens(usages: Sequence[Mapping[str, Any]]) -> BilledTokens:
    sums = BilledTokens()
    for each in map(billed_tokens, usages):
        sums = replace(
            sums,
            input=sums.input + each.input,
            cache_read=sums.cache_read + each.cache_read,
            cache_write=sums.cache_write + each.cache_write,
            output=sums.output + each.output,
        )
    return sums


def reasoning_tokens(usages: Sequence[Mapping[str, Any]]) -> int:
    """Returns the sum of the reasoning tokens that a provider reports, under either of OpenAI's two names."""
    details = [each.get("output_tokens_details") or each.get("completion_tokens_details") or {} for each in usages]
    counts = [detail.get("reasoning_tokens") for detail in details if isinstance(detail, Mapping)]
    return sum(count for count in counts if isinstance(count, int))


def role_tools(turn: Turn) -> frozenset[str]:
    """Returns the tools that receive the output of a structured turn. Calls of these tools are not shown."""
    return frozenset(spec.name for spec in turn.request.tools if spec.role is not None) if turn.request else frozenset()


def is_server_call(runner: Runner | None, name: str | None, roles: frozenset[str]) -> bool:
    """Returns whether a call or its result is shown as a call that the server makes without the client."""
    return runner == "provider" or (runner == "server" and name not in roles)


def flat_name(name: Any, namespace: Any) -> Any:
    """Returns the name by which models call a tool."""
    return f"{name}{_IN}{namespace}" if namespace else name


def names_of(flat: str | None) -> Json:
    """Returns the name of a tool, and the name of its namespace if it has one."""
    name, _, namespace = (flat or "").partition(_IN)
    return {"name": name, "namespace": namespace} if namespace else {"name": flat}


def custom_tools(turn: Turn) -> frozenset[str]:
    specs = turn.request.tools if turn.request else ()
    return frozenset(spec.name for spec in specs if spec.client and parsed(spec.input_schema) == CUSTOM)


def custom_input(arguments: str) -> str:
    """Returns the input of a custom tool. If the model's arguments are not the expected JSON, all their text is the
    input.
    """
    with suppress(msgspec.DecodeError):
        found = msgspec.json.decode(arguments)
        if isinstance(found, dict) and isinstance(found.get("input"), str):
            return str(found["input"])
    return arguments


def function_of(block: Block) -> Json:
    """Returns the function and the arguments of a call."""
    return {**names_of(block.name), "arguments": block.text.strip() or "{}"}


def annotations_of(block: Block) -> list[Json]:
    """Returns the citations of web pages in a text."""
    citations = block_details(block).get("citations") if block.type == TEXT else None
    found = [each for each in citations if isinstance(each, dict)] if isinstance(citations, list) else []
    return [
        {
            "type": "url_citation",
            "url": each["url"],
            "title": each.get("title") or each["url"],
            "start_index": 0,
            "end_index": len(block.text),
        }
        for each in found
        if isinstance(each.get("url"), str)
    ]


def _effort(params: Mapping[str, Any]) -> Any:
    inside = (params.get("reasoning") or {}).get("effort") or (params.get("output_config") or {}).get("effort")
    return inside or params.get("reasoning_effort")


def _tool_choice(choice: Mapping[str, Any]) -> Any:
    if choice.get("type") == "tool":
        return {"type": "function", "name": choice["name"]}
    return {"any": "required", "none": "none"}.get(choice.get("type", "auto"), "auto")


def _function(spec: ToolSpec) -> Json:
    schema = parsed(spec.input_schema)
    if schema == CUSTOM:
        return {"type": "custom", "name": spec.name, "description": spec.description}
    return {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": schema,
        "strict": False,
    }
