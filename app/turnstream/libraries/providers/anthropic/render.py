"""Renders model requests as bodies of Anthropic's API. Pure.

The provider's data is sent back byte for byte. A block has the same bytes in every request, apart from the cache marks,
which the provider does not count as content.
"""

import json
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from msgspec import Raw
from msgspec.json import decode, encode

from turnstream.domain.blocks import Block
from turnstream.domain.compaction import COMPACTION, CONTEXT_EDITING
from turnstream.domain.kinds import (
    CACHEABLE,
    CALLS,
    DOCUMENT,
    PROVIDER_SUMMARY,
    STREAMED_MEMBERS,
    TEXT,
    THOUGHTS,
    TOOL_RESULT,
    TOOL_USE,
)
from turnstream.domain.results import count_files, parts_of
from turnstream.libraries.providers.anthropic.parameters import MEMBERS
from turnstream.libraries.providers.anthropic.rhythm import hour_pays
from turnstream.libraries.providers.raw_members import NULL
from turnstream.libraries.providers.translation import (
    SILENT_FAILURE,
    CallRules,
    split_definitions,
    tool_input,
    with_valid_calls,
    without_foreign_blocks,
)
from turnstream.llm.provider import Message, ModelRequest, ProviderCompaction
from turnstream.llm.raw_json import members_of

DEFAULT_MAX_TOKENS = 16_000
# Members that the endpoint for token counts accepts.
_COUNTED = frozenset(
    {
        "context_management",
        "mcp_servers",
        "messages",
        "model",
        "output_config",
        "speed",
        "system",
        "thinking",
        "tool_choice",
        "tools",
    }
)
_CLEARING, _COMPACTING = "clear_tool_uses_20250919", "compact_20260112"
_BETAS = {
    _CLEARING: "context-management-2025-06-27",
    "clear_thinking_20251015": "context-management-2025-06-27",
    _COMPACTING: "compact-2026-01-12",
}
_FAILED = "The tool failed:"
_LEAST_TRIGGER = 50_000  # tokens: the provider's minimum

_CACHEABLE = CACHEABLE | {"search_result"}
_CALL_RULES = CallRules(re.compile(r"[a-zA-Z0-9_-]+"), longest_name=128, unique=True)


def render(request: ModelRequest, members: Set[str] = MEMBERS, version: str | None = None) -> bytes:
    """Returns the body. Cache marks are set at the end of the system prompt, at the end of the previous request, and at
    the end of this request. `members` are the members that parameters may set. If a `version` is given, the body
    contains the version instead of the model, because a cloud that requires a version has the model in the path.
    """
    body = _body(request, members)
    if version is not None:
        del body["model"]
        body["anthropic_version"] = version
    return encode(body)


def render_count(request: ModelRequest, members: Set[str] = MEMBERS, version: str | None = None) -> bytes:
    """Returns the body of a request that counts tokens. It always contains the model."""
    body = {name: value for name, value in _body(request, members).items() if name in _COUNTED}
    return encode(body if version is None else {**body, "anthropic_version": version})


def betas_of(request: ModelRequest) -> Sequence[str]:
    """Returns the betas that the turn names, and the betas that the request needs for its edits and for the provider's
    summaries in it.
    """
    given: Sequence[str] = request.params.get("betas") or ()
    management = {**_context_management(request.compaction), **request.params}.get("context_management")
    edits = management.get("edits") or () if isinstance(management, Mapping) else ()
    types = [edit.get("type") for edit in edits if isinstance(edit, Mapping)]
    if any(block.type == PROVIDER_SUMMARY for message in request.messages for block in message.blocks):
        types.append(_COMPACTING)
    needed = dict.fromkeys(_BETAS[type] for type in types if type in _BETAS)
    return [*given, *(beta for beta in needed if beta not in given)]


def _body(request: ModelRequest, members: Set[str]) -> dict[str, Any]:
    params = {name: value for name, value in request.params.items() if name in members and value is not None}
    if not (tools := _tools(request)):
        params.pop("tool_choice", None)
    elif not request.may_use_tools:
        params["tool_choice"] = {"type": "none"}
    thinking = params.get("thinking")
    # `max_tokens` includes thoughts: the provider refuses a budget for thoughts that leaves no room for an answer.
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": DEFAULT_MAX_TOKENS + (budget or 0),
        "stream": True,
        **_context_management(request.compaction),
        **params,
    }
    if tools:
        body["tools"] = [Raw(tool) for tool in tools]
    if container := _container_in(request.resume_data) or earlier_container(request):
        param = params.get("container")
        body["container"] = {**param, "id": container} if isinstance(param, Mapping) else container
    if request.system:
        body["system"] = [Raw(_marked(encode({"type": TEXT, "text": request.system}), request))]
    messages = with_valid_calls(without_foreign_blocks(request.messages), _CALL_RULES)
    if isinstance(thinking, Mapping) and thinking.get("type") == "enabled" and _begins_without_thought(messages):
        del body["thinking"]
    body["messages"] = _messages(messages, request)
    return body


def earlier_container(request: ModelRequest) -> str | None:
    """Returns the container of an earlier turn, which has that turn's files, if this turn runs code but neither has nor
    names a container. The container may have expired.
    """
    param = request.params.get("container")
    named = "id" in param if isinstance(param, Mapping) else param is not None
    if (
        named
        or _container_in(request.resume_data)
        or not any('"code_execution_' in tool for tool in request.provider_tools)
    ):
        return None
    return _container_in(request.earlier_data)


def _container_in(data: str | None) -> str | None:
    container = json.loads(data).get("container") if data else None
    id = container.get("id") if isinstance(container, Mapping) else None
    return id if isinstance(id, str) else None


def _begins_without_thought(messages: Sequence[Message]) -> bool:
    """Returns whether the first reply of the current chain of calls begins without a thought: then the provider refuses
    enabled thinking. Such a thought may be missing because thoughts of another model, and thoughts before a shortening,
    are not sent.
    """
    place = len(messages) - 1
    while place > 1 and any(block.type == TOOL_RESULT for block in messages[place].blocks):
        place -= 2
    reply = [block.type for block in messages[place + 1].blocks] if place < len(messages) - 1 else []
    return next((type not in THOUGHTS for type in reply if type != PROVIDER_SUMMARY), False)


def _context_management(compaction: ProviderCompaction | None) -> dict[str, Any]:
    """Returns the edits that the provider may make. The provider clears tool results at three quarters of the limit for
    a summary, and only if the saved tokens are worth the lost cache.
    """
    if compaction is None or not compaction.edits:
        return {}
    edits: list[dict[str, Any]] = []
    if CONTEXT_EDITING in compaction.edits:
        clearing = {"trigger": compaction.at * 3 // 4, "clear_at_least": compaction.at // 8} if compaction.at else {}
        edits.append({"type": _CLEARING} | {name: _tokens(at) for name, at in clearing.items()})
    if COMPACTION in compaction.edits:
        trigger = {"trigger": _tokens(max(_LEAST_TRIGGER, compaction.at))} if compaction.at else {}
        edits.append({"type": _COMPACTING} | trigger)
    return {"context_management": {"edits": edits}}


def _tokens(count: int) -> dict[str, Any]:
    return {"type": "input_tokens", "value": count}


def render_block(block: Block, cites: bool = False) -> bytes:
    """Returns the block as JSON: its `data`, with the streamed member filled in. If the request `cites`, citations are
    enabled for all its documents, because the provider refuses a mixture.
    """
    members = _shell(block)
    members.pop("cache_control", None)
    if block.type == DOCUMENT:
        members = _document(members, cites)
    member = STREAMED_MEMBERS.get(block.type)
    if member is not None and (block.text or block.data is None):
        members[member] = tool_input(block.text) if member == "input" else block.text
    if block.type == TOOL_RESULT:
        members |= _result(block, cites)
    return encode(members)


def _document(members: Mapping[str, Any], cites: bool) -> dict[str, Any]:
    sent = {name: value for name, value in members.items() if name != "cite"}
    return {**sent, "citations": {"enabled": True}} if cites else sent


def _shell(block: Block) -> dict[str, Any]:
    if block.type == TOOL_RESULT:
        return {"type": block.type, "tool_use_id": block.tool_use_id}
    if block.data is not None:
        return dict(members_of(block.data))
    if block.type in CALLS:
        return {"type": block.type, "id": block.tool_use_id, "name": block.name}
    return {"type": block.type}


def _result(block: Block, cites: bool) -> dict[str, Any]:
    """Returns the members of a tool result. The provider refuses an error without content, and an error with a file. So
    an error without content gets a text. An error with a file is sent as a success, and its first text says that the
    tool failed.
    """
    parts: Any = block.text
    if block.data is not None:
        parts = [_document(part, cites) if part["type"] == DOCUMENT else part for part in parts_of(block)]
    if block.is_error and count_files(block):
        return {"content": [{"type": TEXT, "text": _FAILED}, *parts]}
    content = parts or (SILENT_FAILURE if block.is_error else None)
    return ({"content": content} if content else {}) | ({"is_error": True} if block.is_error else {})


def _tools(request: ModelRequest) -> list[bytes]:
    """Returns turnstream's tools, then the provider's own tools. The last tool has the cache mark if there is no system
    prompt. If the provider defines a client tool itself (bash, text editor), that definition is sent instead.
    """
    added, provider_tools = split_definitions(request)
    defined = [decode(members_of(tool).get("name", NULL)) for tool in provider_tools]  # any JSON
    tools = [
        encode(
            {"name": spec.name, "description": spec.description, "input_schema": Raw(spec.input_schema.encode())}
            | added.get(spec.name, {})
        )
        for spec in request.tools
        if spec.name not in defined
    ]
    tools += [tool.encode() for tool in provider_tools]
    if tools and not request.system:
        tools[-1] = _marked(tools[-1], request)
    return tools


def _messages(messages: Sequence[Message], request: ModelRequest) -> list[dict[str, Any]]:
    marks = _marks(messages)
    cites = any(
        block.type in (DOCUMENT, TOOL_RESULT) and block.data is not None and '"cite":true' in block.data
        for message in messages
        for block in message.blocks
    )
    toolsets = {
        block.tool_use_id: members_of(block.data).get("toolset_name")
        for message in messages
        for block in message.blocks
        if block.type == TOOL_USE and block.data and '"toolset_name"' in block.data
    }
    return [
        {
            "role": message.role,
            "content": [
                Raw(_marked(rendered, request) if (number, place) in marks else rendered)
                for place, block in enumerate(message.blocks)
                if (rendered := _with_toolset(block, toolsets, cites))
            ],
        }
        for number, message in enumerate(messages)
    ]


def _with_toolset(block: Block, toolsets: Mapping[str | None, Raw | None], cites: bool) -> bytes:
    """Renders a block. The result of a call names the call's toolset (computer, browser)."""
    rendered = render_block(block, cites)
    toolset = toolsets.get(block.tool_use_id) if block.type == TOOL_RESULT else None
    return rendered if toolset is None else rendered[:-1] + b',"toolset_name":' + bytes(toolset) + b"}"


def _marks(messages: Sequence[Message]) -> set[tuple[int, int]]:
    """Returns the positions of the cache marks: the end of this request, and the end of the previous request, which is
    in the user message before the last answer.
    """
    cacheable = [
        (number, place)
        for number, message in enumerate(messages)
        for place, block in enumerate(message.blocks)
        if block.type in _CACHEABLE
    ]
    answers = [number for number, message in enumerate(messages) if message.role == "assistant"]
    before = [mark for mark in cacheable if answers and mark[0] < answers[-1]]
    return {*cacheable[-1:], *before[-1:]}


def _marked(object: bytes, request: ModelRequest) -> bytes:
    cache = request.options.get("cache")
    ttl = b',"ttl":"1h"' if cache == "1h" or (cache == "auto" and hour_pays(request.past)) else b""
    return object[:-1] + b',"cache_control":{"type":"ephemeral"%b}}' % ttl
