"""A model request as the bytes of a chat completion request. Pure.

A message is the same bytes in every request it is part of, and the arguments of a call are those that were streamed.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import Raw

from app.domain.blocks import TEXT, THINKING, TOOL_RESULT, Block
from app.domain.results import FILES, files_in, parts_of, words_of
from app.domain.turns import ToolSpec
from app.llm.attachments import LEFT_OUT
from app.llm.openai.blocks import SIGNED
from app.llm.openai.history import attachment, block_of, file_name, said_by_tool, told, written
from app.llm.openai.params import LONGEST_NAME, request_bytes, sent_params
from app.llm.openai.quirks import OPENAI, Quirks
from app.llm.provider import Message, ModelRequest
from app.llm.translation import CallRules, tool_input, with_fitting_calls

BELOW = "(This {type} is shown below.)"
RETURNED = "Returned by {name}:"

# Under these names a thought may go back; in others the words alone are worth nothing.
_MEMBERS_OF_THOUGHTS = frozenset({"reasoning_content", "reasoning", "reasoning_text"})


def render(request: ModelRequest, quirks: Quirks = OPENAI) -> bytes:
    system = [{"role": "system", "content": request.system}] if request.system else []
    told_apart = [_with_files_apart(message) for message in request.messages]
    messages = with_fitting_calls(told_apart, CallRules(quirks.call_ids, LONGEST_NAME))
    conversation = {"messages": [*system, *told(messages, _results, partial(_answer, quirks), _part)]}
    params = {**sent_params(request, quirks), "stream": True, "stream_options": {"include_usage": True}}
    return request_bytes(request, conversation, _tool, params, quirks)


def _tool(spec: ToolSpec) -> dict[str, Any]:
    schema = Raw(spec.input_schema.encode())
    return {"type": "function", "function": {"name": spec.name, "description": spec.description, "parameters": schema}}


def _with_files_apart(message: Message) -> Message:
    """Only words can be a result here: its files are said by the user, behind all results."""
    with_files = [block for block in message.blocks if block.type == TOOL_RESULT and files_in(block)]
    if not with_files:
        return message
    results = [_in_words(block) for block in message.blocks if block.type == TOOL_RESULT]
    files = [said for block in with_files for said in _files_of(block)]
    words = [block for block in message.blocks if block.type != TOOL_RESULT]
    return replace(message, blocks=(*results, *files, *words))


def _in_words(result: Block) -> Block:
    parts = parts_of(result)
    words = [part["text"] if part["type"] == TEXT else BELOW.format(type=part["type"]) for part in parts]
    return replace(result, text=words_of(words), data=None)


def _files_of(result: Block) -> Iterator[Block]:
    yield Block(0, 0, 0, TEXT, RETURNED.format(name=result.name))
    yield from (block_of(part) for part in parts_of(result) if part["type"] in FILES)


def _results(blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": said_by_tool(block)}


def _answer(quirks: Quirks, blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
    calls = [_call(block) for block in blocks if block.is_call]
    text = written(blocks)
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


def _call(block: Block) -> dict[str, Any]:
    arguments = bytes(tool_input(block.text)).decode()
    return {"id": block.tool_use_id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _thoughts(blocks: Sequence[Block]) -> dict[str, Any]:
    """The model's own thoughts, where it had said them."""
    members: dict[str, Any] = {}
    for block in blocks:
        data = json.loads(block.data or "{}") if block.type == THINKING else {}
        provider, _, member = str(data.get("signature")).partition(":")
        if provider + ":" != SIGNED:
            continue
        if member in _MEMBERS_OF_THOUGHTS and block.text:
            members[member] = members.get(member, "") + block.text
        if details := data.get("reasoning_details"):
            members["reasoning_details"] = [*members.get("reasoning_details", ()), *details]
    return members


# --- what the user says ----------------------------------------------------------------------------------------------


def _part(block: Block) -> dict[str, Any]:
    if block.type == TEXT:
        return {"type": TEXT, "text": block.text}
    where, what = attachment(block)
    match block.type, where:
        case "image", "url" | "data":
            return {"type": "image_url", "image_url": {"url": what["url"]}}
        case "document", "data":
            return {"type": "file", "file": {"filename": file_name(block), "file_data": what["url"]}}
        case "document", "text":
            return {"type": TEXT, "text": str(what["text"])}
        case _:
            return {"type": TEXT, "text": LEFT_OUT.format(type=block.type)}
