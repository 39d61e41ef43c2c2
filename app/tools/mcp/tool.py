"""A tool of an MCP server: what the server says of it and of its results, in our words."""

import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
from mcp import types
from mcp.shared.dispatcher import ProgressFnT
from pydantic_core import from_json

from app.domain.turns import ToolSpec
from app.kit.text import storable
from app.tools.declared.declarations import McpServer
from app.tools.policy import Policy, ResultForm
from app.tools.serialise import written
from app.tools.tool import RETURNED_NOTHING, File, Outcome, Part, ToolContext, is_name, joined

_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")
_KEPT_OF_A_NAME = 55

Call = Callable[["McpTool", Mapping[str, Any], ProgressFnT], Awaitable[types.CallToolResult]]


@dataclass(frozen=True, slots=True)
class McpTool:
    """`name` is the server's own for it; `call` asks the server, whoever that is by then."""

    spec: ToolSpec
    policy: Policy
    name: str
    call: Call

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        async def show(progress: float, total: float | None, message: str | None) -> None:
            context.progress(message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}"))

        result = await self.call(self, from_json(input_json), show)
        return outcome_of(result, self.policy.results)


def tool_of(server: McpServer, tool: types.Tool, call: Call) -> McpTool:
    return McpTool(_spec(server, tool), server.policy_of(tool.name), tool.name, call)


def tool_name(beginning: str, name: str) -> str:
    """A name that models may be told. One that had to be changed carries a digest of what it was, so that no two names
    become the same, whatever else is listed.
    """
    wanted = beginning + name
    if is_name(wanted):
        return wanted
    digest = sha256(wanted.encode()).hexdigest()[:8]
    return f"{_UNFIT.sub('_', wanted)[:_KEPT_OF_A_NAME]}_{digest}"


def _spec(server: McpServer, tool: types.Tool) -> ToolSpec:
    said = tool.annotations if server.trusted else None
    return ToolSpec(
        name=tool_name(server.beginning, tool.name),
        description=storable(tool.description or tool.title or tool.name),
        input_schema=msgspec.json.encode(tool.input_schema).decode(),
        read_only=tool.name in server.read_only or bool(said and said.read_only_hint),
        retry_safe=bool(said and said.idempotent_hint),
    )


def outcome_of(result: types.CallToolResult, form: ResultForm) -> Outcome:
    """Its texts, or what it has in place of them, and its files in their places."""
    structured, content = result.structured_content, list(result.content)
    if structured is not None and (form == "text" or not any(isinstance(part, types.TextContent) for part in content)):
        content = [part for part in content if not isinstance(part, types.TextContent)]
        content.insert(0, types.TextContent(text=written(structured, form)))
    parts = joined((part for block in content for part in _told(block) if part), "\n")
    return Outcome.of(parts or [_nothing(result)], is_error=result.is_error)


def _nothing(result: types.CallToolResult) -> str:
    return "The call failed; nothing was said of why." if result.is_error else RETURNED_NOTHING


def _told(block: types.ContentBlock) -> Iterator[Part]:
    match block:
        case types.TextContent():
            yield block.text
        case types.ImageContent() | types.AudioContent():
            yield _file(block.data, block.mime_type)
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            yield f"[resource {resource.uri}]\n{resource.text}"
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            yield _file(resource.blob, f"resource {resource.uri}: {resource.mime_type or 'unknown type'}")
        case types.ResourceLink():
            size = "" if block.size is None else f", {block.size:,} bytes"
            yield f"[link to {block.uri}: {block.title or block.name}, {block.mime_type or 'unknown type'}{size}]"
        case _:
            pass


def _file(base64: str, called: str) -> Part:
    try:
        return File(b64decode("".join(base64.split()), validate=True), called)
    except ValueError:
        return f"[{called}: its content is not base64]"
