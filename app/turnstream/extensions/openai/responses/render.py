"""Renders model requests as requests of the Responses API. Pure.

An item has the same bytes in every request; opaque items of the provider are sent back unchanged.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Raw, Struct

from turnstream.domain.blocks import Block, caller_of
from turnstream.domain.kinds import SERVER_RESULT, SERVER_TOOL_USE, TEXT, THINKING
from turnstream.domain.results import count_files, parts_of
from turnstream.extensions.openai.history import (
    FAILED,
    as_block,
    conversation,
    file_name,
    file_source,
    reply_text,
    result_text,
)
from turnstream.extensions.openai.parameters import THOUGHTLESS, responses_parameters
from turnstream.extensions.openai.params import (
    LONGEST_NAME,
    mapping,
    output_schema,
    reasoning_effort,
    request_bytes,
    tool_choice,
)
from turnstream.extensions.openai.quirks import OPENAI, Quirks
from turnstream.extensions.openai.responses.item_types import CUSTOM, FUNCTION, PROGRAM
from turnstream.extensions.openai.responses.items import PROVIDER
from turnstream.libraries.providers.translation import CallRules, provider_of, tool_input, with_valid_calls
from turnstream.llm.conversation.attachments import LEFT_OUT
from turnstream.llm.provider import ModelRequest
from turnstream.llm.raw_json import members_of

# Call ids must be unique, because only the id connects a result with its call.
_CALL_RULES = CallRules(re.compile(r".{1,64}", re.DOTALL), LONGEST_NAME, unique=True)

# Parameters that have another name or form in this API.
_TRANSLATED = frozenset(
    {"include", "max_tokens", "output_config", "reasoning", "reasoning_effort", "thinking", "tool_choice", "verbosity"}
)
# Makes the provider finish an answer that has no reader; for this, the provider requires `store`.
_BACKGROUND = {"background": True, "store": True}
_THOUGHTS = "reasoning.encrypted_content"
# Members that the endpoint for token counts accepts.
_COUNTED = frozenset(
    {
        "input",
        "instructions",
        "model",
        "parallel_tool_calls",
        "reasoning",
        "text",
        "tool_choice",
        "tools",
        "truncation",
    }
)


def render(request: ModelRequest, quirks: Quirks = OPENAI) -> bytes:
    params = _params(request, quirks)
    items = _Items(stored=params.get("store") is True)
    messages = with_valid_calls(request.messages, _CALL_RULES)
    system = {"instructions": request.system} if request.system else {}
    input = list(conversation(messages, items.results, items.reply, _part))
    return request_bytes(
        request,
        {**system, "input": input},
        # Without `strict` this API treats a schema as strict.
        lambda tool: {"type": "function", **tool, "strict": False},
        {**params, **(_BACKGROUND if request.options.get("background") else {}), "stream": True},
        quirks,
    )


def render_count(request: ModelRequest, quirks: Quirks = OPENAI) -> bytes:
    """Returns the body of a request for the token count."""
    body = members_of(render(request, quirks).decode())
    return msgspec.json.encode({name: value for name, value in body.items() if name in _COUNTED})


def _params(request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
    """Returns the parameters. By default the provider stores nothing, so it sends its encrypted thoughts to us, and the
    next request sends them back.
    """
    given = {name: value for name, value in request.params.items() if value is not None}
    params: dict[str, Any] = {"store": False}
    if "max_tokens" in given:
        params["max_output_tokens"] = given["max_tokens"]
    if quirks.thinking is not None and (reasoning := _reasoning(given)):
        params["reasoning"] = reasoning
    text = {"format": {"type": "json_schema", **schema}} if (schema := output_schema(given)) else {}
    text |= {"verbosity": given["verbosity"]} if "verbosity" in given else {}
    if text:
        params["text"] = text
    params |= tool_choice(given, request, lambda name: {"type": "function", "name": name})
    known = {parameter.name for parameter in responses_parameters(quirks)} - _TRANSLATED
    params |= {name: value for name, value in given.items() if name in known}
    # The members that the turn lists are requested. Encrypted thoughts are also requested, unless the model does not
    # reason, or the turn has such a list and the provider stores the answer.
    listed = given.get("include")
    stored = listed is not None and given.get("store")
    include = [] if stored or THOUGHTLESS.search(request.model) else [_THOUGHTS]
    include += [each for each in listed or () if each not in include]
    return params | ({"include": include} if include or listed is not None else {})


def _reasoning(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the member `reasoning`. A summary is requested only if the turn displays it, because some accounts may
    not see summaries.
    """
    effort = given.get("reasoning_effort") or reasoning_effort(given)
    reasoning = {"effort": effort} if effort else {}
    if mapping(given.get("thinking")).get("display") == "summarized":
        reasoning["summary"] = "auto"
    return {**reasoning, **mapping(given.get("reasoning"))}


class _Own(Struct):
    """This adapter's own members in the `data` of its blocks."""

    provider: str | None = None
    item: Raw = Raw(b"{}")
    thought: str | None = None
    phase: str | None = None
    ahead: int = 0


class _Item(Struct):
    type: str = ""
    id: str | None = None
    encrypted_content: str | None = None
    content: list[Raw] | None = None


_NOTHING = _Own()
_own = msgspec.json.Decoder(_Own)
_item = msgspec.json.Decoder(_Item)


class _Items:
    """The items of a conversation. With `stored`, the provider stores its thoughts and finds them by id."""

    def __init__(self, stored: bool) -> None:
        self._stored = stored
        self._thoughts: set[str | None] = set()
        self._awaited: set[str | None] = set()
        self._calls: dict[str | None, dict[str, Raw]] = {}

    def reply(self, blocks: Sequence[Block]) -> Iterator[Any]:
        """Yields a reply's items. A thought that no item follows is omitted, because the provider would refuse it."""
        items = [*self._items(_in_order(blocks)), ("thought", None)]
        for (kind, item), (next_kind, _) in pairwise(items):
            if (kind, next_kind) != ("thought", "thought"):
                yield item

    def _items(self, blocks: Sequence[Block]) -> Iterator[tuple[str, Any]]:
        texts: list[Block] = []
        phase: str | None = None
        answered = {block.tool_use_id for block in blocks if block.type.endswith(SERVER_RESULT)}
        for block in blocks:
            own = _own.decode(block.data) if block.data and provider_of(block) == PROVIDER else _NOTHING
            item = self._item(block, own, block.tool_use_id in answered)
            if item is not None or (block.type == TEXT and own.phase != phase):
                yield from _message(texts, phase)
                texts = []
            if item is not None:
                yield ("thought" if block.type == THINKING else "item"), item
            else:
                texts.append(block)
                phase = own.phase if block.type == TEXT else phase
        yield from _message(texts, phase)

    def _item(self, block: Block, own: _Own, is_answered: bool) -> Any:
        """Returns the item of a block. Returns None for text, for blocks of other providers, and for items that the
        provider would refuse.
        """
        if block.is_call:
            return self._call(block, own)
        if block.type == TEXT or own.provider != PROVIDER:
            return None
        if block.type == THINKING:
            return self._thought(own.item)
        bound = own.thought is None or own.thought in self._thoughts
        return own.item if bound and self._belongs(block, _item.decode(own.item).type, is_answered) else None

    def _belongs(self, block: Block, type: str, is_answered: bool) -> bool:
        """Returns whether an item may be sent. A call without its output, or an output without its call, may not. A
        function call that the server ran itself is omitted too, because the server refuses a function call without an
        output.
        """
        if type in {CUSTOM, FUNCTION}:
            return False
        if block.type == SERVER_TOOL_USE and (is_answered or block.name == PROGRAM):
            self._awaited.add(block.tool_use_id)
        elif block.type == SERVER_TOOL_USE or (type.endswith("_output") and block.tool_use_id not in self._awaited):
            return False
        return type != ""

    def _thought(self, item: Raw) -> Raw | None:
        """Returns None for a thought that has only an id, unless the provider has stored the thought."""
        thought = _item.decode(item)
        if not (self._stored or thought.encrypted_content or thought.content):
            return None
        self._thoughts.add(thought.id)
        return item

    def _call(self, block: Block, own: _Own) -> dict[str, Any]:
        kept = members_of(own.item) if own.provider == PROVIDER else {}
        if caller_of(block) not in {None, *self._awaited}:  # the program that made the call is not sent
            kept.pop("caller", None)
        self._calls[block.tool_use_id] = kept
        called = {"type": "function_call", "call_id": block.tool_use_id, "name": block.name, **kept}
        if _is_custom(kept):
            return {**called, "input": str(json.loads(bytes(tool_input(block.text))).get("input", block.text))}
        return {**called, "arguments": bytes(tool_input(block.text)).decode()}

    def results(self, blocks: Sequence[Block]) -> Iterator[dict[str, Any]]:
        for block in blocks:
            call = self._calls.get(block.tool_use_id, {})
            type = "custom_tool_call_output" if _is_custom(call) else "function_call_output"
            caller = {"caller": call["caller"]} if "caller" in call else {}
            yield {"type": type, "call_id": block.tool_use_id, "output": _output(block), **caller}


def _in_order(blocks: Sequence[Block]) -> list[Block]:
    """Moves each block of a late item to the position of the item in the output."""
    ordered: list[Block] = []
    for block in blocks:
        late = block.data is not None and '"ahead":' in block.data and provider_of(block) == PROVIDER
        ahead = _own.decode(block.data or "{}").ahead if late else 0
        ordered.insert(max(0, len(ordered) - ahead), block)
    return ordered


def _output(result: Block) -> str | list[dict[str, Any]]:
    """Returns the text of a result, or a list of parts if the result has files."""
    if not count_files(result):
        return result_text(result)
    parts = [_part(as_block(part)) for part in parts_of(result)]
    return [{"type": "input_text", "text": FAILED.strip()}, *parts] if result.is_error else parts


def _is_custom(call: Mapping[str, Raw]) -> bool:
    return "type" in call


def _message(blocks: Sequence[Block], phase: str | None) -> Iterator[tuple[str, Any]]:
    if (text := reply_text(blocks)).strip():
        yield "message", {"role": "assistant", "content": text, **({"phase": phase} if phase else {})}


def _part(block: Block) -> dict[str, Any]:
    if block.type == TEXT:
        return {"type": "input_text", "text": block.text}
    where, source = file_source(block)
    match block.type, where:
        case "image", "url" | "data":
            return {"type": "input_image", "image_url": source["url"]}
        case "document", "data":
            return {"type": "input_file", "filename": file_name(block), "file_data": source["url"]}
        case "document", "url":
            return {"type": "input_file", "file_url": source["url"]}
        case "document", "text":
            return {"type": "input_text", "text": str(source["text"])}
        case _:
            return {"type": "input_text", "text": LEFT_OUT.format(type=block.type)}
