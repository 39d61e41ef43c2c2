"""An MCP server with tasks over HTTP, which is built with the package `mcp`.

`python -m tests.extensions.mcp.mcp_task_library FOLDER PORT` starts the server. The extension for tasks uses the shapes
of the specification and has its own store of tasks. The package does the rest: validation, versions, capabilities and
headers.
"""

import json
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvicorn
from mcp import types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

ABOUT = {"createdAt": "2026-07-28T10:30:00Z", "lastUpdatedAt": "2026-07-28T10:30:00Z", "ttlMs": None}


class ById(types.RequestParams):
    task_id: str


class Update(ById):
    input_responses: dict[str, Any]


class Tasks(Extension):
    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def methods(self) -> list[MethodBinding]:
        return [
            MethodBinding("tasks/get", ById, self._get),
            MethodBinding("tasks/update", Update, self._update),
            MethodBinding("tasks/cancel", ById, self._cancel),
        ]

    async def intercept_tool_call(
        self, params: types.CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        result = await call_next(ctx)
        assert isinstance(result, types.CallToolResult)
        id = str(uuid4())
        done = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        self._save(id, {"polls": 0, "result": done, "asks": params.name == "ask"})
        self._effect(method="tools/call", tool=params.name, task=id)
        return {"resultType": "task", "taskId": id, "status": "working", "pollIntervalMs": 20, **ABOUT}

    async def _get(self, _: ServerRequestContext[Any, Any], params: ById) -> dict[str, Any]:
        task = self._load(params.task_id)
        self._save(params.task_id, {**task, "polls": task["polls"] + 1})
        common = {"resultType": "complete", "taskId": params.task_id, "pollIntervalMs": 20, **ABOUT}
        if task["polls"] == 0:
            return {**common, "status": "working", "statusMessage": "Begun."}
        if task["asks"]:
            form = {"type": "object", "properties": {"name": {"type": "string"}}}
            asked = {"mode": "form", "message": "Who is it?", "requestedSchema": form}
            requests = {"name": {"method": "elicitation/create", "params": asked}}
            return {**common, "status": "input_required", "inputRequests": requests}
        return {**common, "status": "completed", "result": task["result"]}

    async def _update(self, _: ServerRequestContext[Any, Any], params: Update) -> dict[str, Any]:
        task = self._load(params.task_id)
        answer = params.input_responses["name"]
        content = [{"type": "text", "text": json.dumps(answer)}]
        self._effect(method="tasks/update", task=params.task_id)
        self._save(params.task_id, {**task, "asks": False, "result": {**task["result"], "content": content}})
        return {"resultType": "complete"}

    async def _cancel(self, _: ServerRequestContext[Any, Any], params: ById) -> dict[str, Any]:
        self._load(params.task_id)
        self._effect(method="tasks/cancel", task=params.task_id)
        return {"resultType": "complete"}

    def _effect(self, **effect: Any) -> None:
        with (self._folder / "effects.jsonl").open("a") as effects:
            effects.write(json.dumps(effect) + "\n")

    def _load(self, id: str) -> dict[str, Any]:
        path = self._folder / f"{id}.task"
        if not path.exists():
            raise MCPError(code=types.INVALID_PARAMS, message="Task not found")
        task: dict[str, Any] = json.loads(path.read_text())
        return task

    def _save(self, id: str, task: dict[str, Any]) -> None:
        (self._folder / f"{id}.task").write_text(json.dumps(task))


def served(folder: Path) -> MCPServer:
    server = MCPServer("tasks", extensions=[Tasks(folder)])

    @server.tool(structured_output=False)
    async def work() -> str:
        """Do work."""
        return "work done"

    @server.tool(structured_output=False)
    async def ask() -> str:
        """Ask who it is."""
        return "nobody was asked"

    return server


if __name__ == "__main__":
    uvicorn.run(served(Path(sys.argv[1])).streamable_http_app(), host="127.0.0.1", port=int(sys.argv[2]))
