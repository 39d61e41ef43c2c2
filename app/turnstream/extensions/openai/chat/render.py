"""Renders model requests as chat completion requests. Pure.

A message has the same bytes in every request. The arguments of a call are sent back as the model streamed them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TEXT, THINKING
from turnstream.extensions.openai.chat.blocks import SIGNATURE_PREFIX
from turnstream.extensions.openai.history import (
    conversation,
    file_name,
    file_source,
    reply_text,
    result_text,
    with_files_behind_results,
)
from turnstream.extensions.openai.parameters import chat_parameters
from turnstream.extensions.openai.params import (
    LONGEST_NAME,
    mapping,
    output_schema,
    reasoning_effort,
    request_bytes,
    tool_choice,
)
from turnstream.extensions.openai.quirks import OPENAI, Quirks
from turnstream.libraries.providers.translation import CallRules, tool_input, with_valid_calls
from turnstream.llm.conversation.attachments import LEFT_OUT
from turnstream.llm.provider import ModelRequest

# Parameters that have another name or form in this API.
_TRANSLATED = frozenset({"max_tokens", "output_config", "seed", "stop_sequences", "thinking", "tool_choice"})
# Members in which the text of a thought may be sent back; servers ignore other members.
_THOUGHT_MEMBERS = frozenset({"reasoning_content", "reasoning", "reasoning_text"})


def render(request: ModelRequest, quirks: Quirks = OPENAI) -> bytes:
    system = [{"role": "system", "content": request.system}] if request.system else []
    messages = with_valid_calls(
        [with_files_behind_results(message) for message in request.messages], CallRules(quirks.call_ids, LONGEST_NAME)
    )
    said = conversation(messages, _results, partial(_reply, quirks), _part, prefilled=request.prefilled)
    items = _bridged(said, quirks.after_tools)
    params = {**_params(request, quirks), "stream": True, "stream_options": {"include_usage": True}}
    body = {"messages": [*system, *items]}
    return request_bytes(request, body, lambda tool: {"type": "function", "function": tool}, params, quirks)


def _params(request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
    given = {name: value for name, value in request.params.items() if value is not None}
    params: dict[str, Any] = {}
    if "max_tokens" in given:
        params[quirks.max_tokens] = given["max_tokens"]
    if given.get("stop_sequences"):
        params["stop"] = given["stop_sequences"]
    params |= _thinking(given, quirks)
    if schema := output_schema(given):
        params["response_format"] = {"type": "json_schema", "json_schema": schema}
    params |= tool_choice(given, request, lambda name: {"type": "function", "function": {"name": name}})
    if "seed" in given:
        params[quirks.seed] = given["seed"]
    known = {parameter.name for parameter in chat_parameters(quirks)} - _TRANSLATED
    return params | {name: value for name, value in given.items() if name in known}


def _thinking(given: Mapping[str, Any], quirks: Quirks) -> dict[str, Any]:
    effort = reasoning_effort(given)
    match quirks.thinking:
        case "reasoning_effort" if effort:
            return {"reasoning_effort": effort}
        case "reasoning" if effort:
            return {"reasoning": {"enabled": False} if effort == "none" else {"effort": effort}}
        case "thinking" if kind := mapping(given.get("thinking")).get("type"):
            return {"thinking": {"type": "disabled" if kind == "disabled" else "enabled"}}
        case _:
            return {}


def _bridged(messages: Iterable[dict[str, Any]], text: str | None) -> Iterator[dict[str, Any]]:
    """Inserts an assistant message with `text` between each tool message and a user message directly behind it."""
    before = ""
    for message in messages:
        if text is not None and (before, message["role"]) == ("tool", "user"):
            yield {"role": "assistant", "content": text}
        before = message["role"]
        yield message


def _results(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": result_text(block)}


def _reply(quirks: Quirks, blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    calls = [
        {
            "id": block.tool_use_id,
            "type": "function",
            "function": {"name": block.name, "arguments": bytes(tool_input(block.text)).decode()},
        }
        for block in blocks
        if block.is_call
    ]
    text = reply_text(blocks)
    if not calls and not text.strip():
        return
    message: dict[str, Any] = {"role": "assistant"}
    if text:
        message["content"] = text
    if quirks.thoughts_go_back:
        message |= _thoughts(blocks)
    if calls:
        message["tool_calls"] = calls
    yield message


def _thoughts(blocks: Sequence[Block]) -> dict[str, Any]:
    """Returns the model's own thoughts, in the members in which the server sent them."""
    members: dict[str, Any] = {}
    for block in blocks:
        data = json.loads(block.data or "{}") if block.type == THINKING else {}
        provider, _, member = str(data.get("signature")).partition(":")
        if provider + ":" != SIGNATURE_PREFIX:
            continue
        if member in _THOUGHT_MEMBERS and block.text:
            members[member] = members.get(member, "") + block.text
        if details := data.get("reasoning_details"):
            members["reasoning_details"] = [*members.get("reasoning_details", ()), *details]
    return members


def _part(block: Block) -> dict[str, Any]:
    if block.type == TEXT:
        return {"type": TEXT, "text": block.text}
    where, source = file_source(block)
    match block.type, where:
        case "image", "url" | "data":
            return {"type": "image_url", "image_url": {"url": source["url"]}}
        case "document", "data":
            return {"type": "file", "file": {"filename": file_name(block), "file_data": source["url"]}}
        case "document", "text":
            return {"type": TEXT, "text": str(source["text"])}
        case _:
            return {"type": TEXT, "text": LEFT_OUT.format(type=block.type)}
