"""Translates the specs and the results of tools of MCP servers."""

import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, ClassVar

import msgspec
import structlog
from mcp import types
from mcp.shared.dispatcher import ProgressFnT
from pydantic_core import from_json

from turnstream.domain.turns import ToolSpec
from turnstream.extensions.mcp.app_tools import app_of, is_for
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.session import asking
from turnstream.extensions.mcp.tasks import McpTask, TaskCreated
from turnstream.kit.text import storable
from turnstream.tools.policy import Policy, ResultForm
from turnstream.tools.schemas import InputSchema, SchemaRoom
from turnstream.tools.serialize import serialize
from turnstream.tools.tool import (
    RETURNED_NOTHING,
    File,
    Outcome,
    OutcomePart,
    StoppedCall,
    ToolContext,
    is_name,
    join_texts,
)

log = structlog.get_logger(__name__)

_INVALID_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]")
_KEPT_OF_A_NAME = 55
MAX_DESCRIPTION = 10_000  # characters, which each request to the model contains
_PROTOCOL = "io.modelcontextprotocol/"  # the prefix of metadata about the connection, such as the server's version

# Calls a tool of a server for an owner.
McpCall = Callable[["McpTool", Mapping[str, Any], ProgressFnT, ToolContext], Awaitable[types.CallToolResult | Outcome]]


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of an MCP server. `name` is the server's own name for the tool. `call` uses the present connection.
    `output` is the declared schema of structured content. A `hidden` tool is only for apps of the server; a tool
    without `for_apps` is only for models.
    """

    job_kind: ClassVar = "mcp_task"

    spec: ToolSpec
    policy: Policy
    name: str
    call: McpCall
    output: InputSchema | None = None
    task: Callable[[str, str], McpTask] | None = None
    detaches: bool = False  # a call that the server turns into a task becomes a job
    app: Mapping[str, str] | None = None  # for clients: the server, and the address of the result's app
    hidden: bool = False
    for_apps: bool = True

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        async def show(progress: float, total: float | None, message: str | None) -> None:
            context.progress(message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}"))

        asking.set(context.ask)
        result: types.CallToolResult | Outcome
        if context.handle is not None:
            result = await self._task(context.handle["task"], context).resume(context)
        else:
            try:
                result = await self.call(self, from_json(input_json), show, context)
            except TaskCreated as created:
                task = self._task(created.task.task_id, context)
                if context.may_detach:
                    return task.detach(context, created.task)
                result = await task.follow(context, created.task)
        return result if isinstance(result, Outcome) else self.outcome(result)

    async def stopped(self, call: StoppedCall) -> None:
        """Cancels the task of a stopped job. Raises ToolUnavailable if the server of the task is unreachable."""
        assert self.task is not None
        await self.task(call.handle["task"], call.owner).stop()

    def _task(self, id: str, context: ToolContext) -> McpTask:
        assert self.task is not None
        return self.task(id, context.owner)

    def outcome(self, result: types.CallToolResult) -> Outcome:
        """Returns the outcome of a call that the server has answered. Data that does not match the declared schema is
        an error.
        """
        if (complaint := self._complaint(result)) is not None:
            log.warning("mcp.result_invalid", tool=self.spec.name, error=complaint)
            return Outcome(f"The call was made, but its result cannot be used: {complaint}", is_error=True)
        outcome = outcome_of(result, self.policy.results)
        return outcome if self.app is None else replace(outcome, data={**(outcome.data or {}), "ui": self.app})

    def _complaint(self, result: types.CallToolResult) -> str | None:
        if self.output is None or result.is_error:
            return None
        if "structured_content" not in result.model_fields_set:
            return "the server declares an output schema and sent no structured content."
        complaint = self.output.complaint(result.structured_content)
        return complaint and f"its structured content does not match the output schema of the server. {complaint}"


def tool_of(
    server: McpServer,
    tool: types.Tool,
    call: McpCall,
    room: SchemaRoom,
    task: Callable[[str, str], McpTask] | None = None,
) -> McpTool:
    """Translates a tool of a server. Raises ValueError if its texts are too long, or if its schema is invalid or
    exceeds the `room`.
    """
    if tool.execution is not None and tool.execution.task_support == "required":
        raise ValueError("it works only as a task of the protocol 2025-11-25, which 2026-07-28 has replaced")
    hints = tool.annotations if server.trusted else None
    description = storable(tool.description or tool.title or tool.name)
    if max(len(tool.name), len(description)) > MAX_DESCRIPTION:
        raise ValueError(f"its name or its description has more than {MAX_DESCRIPTION:,} characters")
    spec = ToolSpec(
        name=tool_name(server.name_prefix, tool.name),
        description=description,
        input_schema=InputSchema.checked(_json(tool.input_schema), room).text,
        read_only=tool.name in server.read_only or bool(hints and hints.read_only_hint),
        retry_safe=bool(hints and hints.idempotent_hint),
    )
    output, policy = _output_schema(tool.output_schema, room), server.policy_of(tool.name)
    hidden = not is_for(tool, "model")
    # Replicas claim jobs by the names of shared tools, and the tools of single owners are not shared.
    uri, is_shared = app_of(tool), server.allowed is None and not server.owner_tools
    app = None if uri is None else {"server": server.name, "resourceUri": uri}
    if hidden:  # no replica claims jobs of hidden tools
        policy, is_shared = replace(policy, background=False, reports=False), False
    return McpTool(spec, policy, tool.name, call, output, task, is_shared, app, hidden, is_for(tool, "app"))


def _output_schema(schema: dict[str, Any] | None, room: SchemaRoom) -> InputSchema | None:
    """Returns the schema of structured content. Unlike an input, structured content may be any JSON value. Raises
    ValueError.
    """
    if schema is None:
        return None
    try:
        InputSchema.checked(_json({**schema, "type": "object"}), room)
    except ValueError as problem:
        raise ValueError(str(problem).replace("input schema", "output schema")) from None
    return InputSchema(_json(schema))


def _json(schema: dict[str, Any]) -> str:
    return storable(msgspec.json.encode(schema).decode())


def tool_name(prefix: str, name: str) -> str:
    """Returns a name that providers accept. If the name had to be changed, it ends in a digest of the original name, so
    that two tools never get the same name.
    """
    full = prefix + name
    if is_name(full):
        return full
    digest = sha256(full.encode()).hexdigest()[:8]
    return f"{_INVALID_CHARACTERS.sub('_', full)[:_KEPT_OF_A_NAME]}_{digest}"


def outcome_of(result: types.CallToolResult, form: ResultForm) -> Outcome:
    """Returns the texts and the files of a result, in order. Structured content may replace the texts. Clients also
    receive the structured content and the metadata unchanged.
    """
    structured, content = result.structured_content, list(result.content)
    if structured is not None and (form == "text" or not any(isinstance(part, types.TextContent) for part in content)):
        content = [part for part in content if not isinstance(part, types.TextContent)]
        content.insert(0, types.TextContent(text=serialize(structured, form)))
    parts = join_texts((part for block in content for part in parts_of(block) if part), "\n")
    nothing = "The call failed; nothing was said of why." if result.is_error else RETURNED_NOTHING
    metadata = {name: value for name, value in (result.meta or {}).items() if not name.startswith(_PROTOCOL)}
    kept = {"structuredContent": structured, "_meta": metadata or None}
    data = {name: value for name, value in kept.items() if value is not None}
    return replace(Outcome.of(parts or [nothing], is_error=result.is_error), data=data or None)


def parts_of(block: types.ContentBlock) -> Iterator[OutcomePart]:
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


def _file(base64: str, called: str) -> OutcomePart:
    try:
        return File(b64decode("".join(base64.split()), validate=True), called)
    except ValueError:
        return f"[{called}: its content is not base64]"
