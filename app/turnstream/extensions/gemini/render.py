"""Renders model requests as requests to the Gemini API. Pure.

A reply is a list of parts, which are sent back in order. A signature is sent back byte for byte with its part, and only
to the model that made it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from turnstream.domain.blocks import Block
from turnstream.domain.kinds import FILES, PORTABLE, TEXT, THINKING, TOOL_RESULT
from turnstream.domain.results import joined_texts, parts_of
from turnstream.extensions.gemini.parameters import is_older, request_members, tool_config
from turnstream.extensions.gemini.schema import declared_schema
from turnstream.extensions.gemini.wire import PROVIDER, SIGNATURE
from turnstream.libraries.providers.translation import (
    SILENT_FAILURE,
    CallRules,
    provider_of,
    split_definitions,
    tool_input,
    with_valid_calls,
)
from turnstream.llm.conversation.attachments import LEFT_OUT
from turnstream.llm.conversation.messages import GO_ON
from turnstream.llm.provider import ModelRequest
from turnstream.llm.raw_json import members_of

# The value that Google documents for calls that have no signature because another model made them.
_UNSIGNED = "skip_thought_signature_validator"
_CALL_RULES = CallRules(re.compile(r".+", re.DOTALL), longest_name=64)

Json = dict[str, Any]


def render(request: ModelRequest, further: frozenset[str] = frozenset()) -> bytes:
    """Returns the body of a model request. `further` names the additional parameters that the operator allows."""
    return msgspec.json.encode(_body(request, further))


def render_count(request: ModelRequest, *, vertex: bool) -> bytes:
    """Returns the body of a request that counts tokens."""
    body = _body(request, frozenset())
    if vertex:
        return msgspec.json.encode(
            {name: body[name] for name in ("contents", "systemInstruction", "tools") if name in body}
        )
    return msgspec.json.encode({"generateContentRequest": {"model": f"models/{request.model}", **body}})


def _body(request: ModelRequest, further: frozenset[str]) -> Json:
    members = request_members(request, further)
    body: Json = {"contents": list(_contents(request))}
    # the cache contains the prompt and the tools, and the API refuses a request that repeats them
    if "cachedContent" not in members:
        if request.system:
            body["systemInstruction"] = {"parts": [{"text": request.system}]}
        functions, provider_tools = _tools(request)
        if tools := [*([{"functionDeclarations": functions}] if functions else []), *provider_tools]:
            body["tools"] = tools
            body |= tool_config(request, functions=bool(functions), provider_tools=bool(provider_tools))
    return body | members


def _tools(request: ModelRequest) -> tuple[list[Json], list[Json]]:
    """Returns the functions, and the provider's tools: `{"type": "google_search"}` becomes `{"googleSearch": {}}`."""
    _, definitions = split_definitions(request)
    functions = [
        {
            "name": spec.name,
            "description": spec.description,
            "parametersJsonSchema": Raw(declared_schema(spec.input_schema)),
        }
        for spec in request.tools
    ]
    return functions, [_provider_tool(json.loads(definition)) for definition in definitions]


def _provider_tool(definition: Json) -> Json:
    first, *words = str(definition.pop("type", "")).split("_")
    definition.pop("name", None)
    return {first + "".join(word.capitalize() for word in words): definition}


def _contents(request: ModelRequest) -> Iterator[Json]:
    messages = with_valid_calls(request.messages, _CALL_RULES)
    # Ids are only sent to the API that issued them.
    ids = {
        block.tool_use_id: _own_data(block).get("call_id")
        for message in messages
        for block in message.blocks
        if block.is_call
    }
    names = {block.tool_use_id: block.name for message in messages for block in message.blocks if block.is_call}
    last = "assistant"
    for message in messages:
        if message.role == "assistant":
            if parts := list(_reply(message.blocks, request.model)):
                yield {"role": "model", "parts": parts}
                last = "assistant"
            continue
        results = [block for block in message.blocks if block.type == TOOL_RESULT]
        if results:
            yield {"role": "user", "parts": [_response(block, ids, names) for block in results]}
        others = [block for block in message.blocks if block.type != TOOL_RESULT]
        if parts := [*_files_of(results), *(_user_part(block.type, block.text, block.data) for block in others)]:
            yield {"role": "user", "parts": parts}
        last = "user"
    if last == "assistant":
        yield {"role": "user", "parts": [{"text": GO_ON}]}


def _reply(blocks: Sequence[Block], model: str) -> Iterator[Any]:
    """Yields the parts of a reply. Newer models refuse a reply if its first call has no signature."""
    called = is_older(model)
    for block in blocks:
        own = _own_data(block)
        signed = {SIGNATURE: own[SIGNATURE]} if own.get("model") == model and own.get(SIGNATURE) else {}
        if block.type == TEXT or (block.type == THINKING and own.get("model") == model):
            yield from _texts(block.text, own, signed, {"thought": True} if block.type == THINKING else {})
        elif block.is_call and block.type in PORTABLE:
            call = {"name": block.name, "args": tool_input(block.text)}
            id = {"id": own["call_id"]} if own.get("call_id") else {}
            unsigned = {} if called else {SIGNATURE: _UNSIGNED}
            called = True
            yield {"functionCall": {**id, **call}, **(signed or unsigned)}
        elif "item" in own:
            item = members_of(members_of(block.data or "{}")["item"])
            yield (
                item if own.get("model") == model else {name: each for name, each in item.items() if name != SIGNATURE}
            )


def _texts(text: str, own: Mapping[str, Any], signed: Json, thought: Json) -> Iterator[Json]:
    """Yields a text as one part, or as two parts if its signature arrived with a later piece: only the second part,
    from that piece on, has the signature.
    """
    start = own.get("signed_from", len(text)) if signed else len(text)
    if text[:start].strip():
        yield {"text": text[:start], **thought}
    if signed:
        yield {"text": text[start:], **thought, **signed}


def _own_data(block: Block) -> Mapping[str, Any]:
    """Returns the members of a block that this adapter created, and nothing for any other block."""
    if block.data is None or provider_of(block) != PROVIDER:
        return {}
    members: Mapping[str, Any] = json.loads(block.data)
    return members


def _response(block: Block, ids: Mapping[str | None, Any], names: Mapping[str | None, str | None]) -> Json:
    text = joined_texts([part["text"] for part in parts_of(block) if part["type"] == TEXT])
    answer = {"error": text or SILENT_FAILURE} if block.is_error else {"output": text}
    id = {"id": ids[block.tool_use_id]} if ids.get(block.tool_use_id) else {}
    return {"functionResponse": {**id, "name": names.get(block.tool_use_id) or block.name, "response": answer}}


def _files_of(results: Iterable[Block]) -> Iterator[Json]:
    """Yields the files of results as parts behind all results, because older models accept no files in results."""
    for block in results:
        if files := [part for part in parts_of(block) if part["type"] in FILES]:
            yield {"text": f"Returned by {block.name}:"}
            yield from (_user_part(part["type"], "", json.dumps(part)) for part in files)


def _user_part(type: str, text: str, data: str | None) -> Json:
    if type not in FILES:
        return {"text": text}
    source: Mapping[str, Any] = json.loads(data or "{}").get("source") or {}
    match source.get("type"):
        case "base64":
            return {"inlineData": {"mimeType": source.get("media_type"), "data": source.get("data")}}
        case "url":
            kind = source.get("media_type") or ("application/pdf" if type == "document" else "image/*")
            return {"fileData": {"fileUri": source.get("url"), "mimeType": kind}}
        case "text":
            return {"text": source.get("data", "")}
        case _:
            return {"text": LEFT_OUT.format(type=type)}
