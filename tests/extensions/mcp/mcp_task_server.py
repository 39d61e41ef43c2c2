"""An MCP server of 2026-07-28 with the extension for tasks, written from the specification alone, without an SDK.

`python -m tests.extensions.mcp.mcp_task_server FOLDER` runs over stdio. With a port as its second argument, the server
runs over HTTP.

The folder contains the tasks, which survive a restart. It also contains `effects.jsonl`, which has a line for each
request that has an effect: tests count the effects there. No test waits for a clock, because a task advances with each
`tasks/get`, or as soon as `FOLDER/release` exists. Over HTTP, the server delays its answers to calls of `slow_call` and
to polls of `slow_poll` until `FOLDER/release` exists. With `--ttl MS`, clients may cache the list of tools for MS
milliseconds, and each description contains the number of lists that were sent so far.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

EXTENSION = "io.modelcontextprotocol/tasks"
VERSION = "2026-07-28"
CREATED = "2026-07-28T10:30:00Z"
# The states that a task has in successive `tasks/get` requests. The last state repeats.
COURSES: dict[str, list[str]] = {
    "work": ["working", "working", "completed"],
    "quick": ["completed"],
    "ask": ["input_required", "working", "completed"],
    "ask_twice": ["input_required", "input_required", "completed"],
    "fail": ["working", "failed"],
    "tool_error": ["working", "error"],
    "wait": ["waiting"],
    "slow_call": ["completed"],
    "slow_poll": ["completed"],
    "vanish": ["gone"],
    "stop": ["cancelled"],
    "wrong_data": ["completed"],
    "odd": ["odd"],
    "sample": ["sampling"],
}
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}


class RpcError(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.error = {"code": code, "message": message, **({} if data is None else {"data": data})}


class Tasks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def effect(self, **effect: Any) -> None:
        with (self._folder / "effects.jsonl").open("a") as effects:
            effects.write(json.dumps(effect) + "\n")

    def create(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        task = {"taskId": str(uuid4()), "tool": tool, "arguments": arguments, "course": COURSES[tool], "answers": {}}
        self.effect(method="tools/call", tool=tool, task=task["taskId"], arguments=arguments)
        self._save(task)
        return {"resultType": "task", **self._about(task), "status": "working", "statusMessage": "Accepted."}

    def get(self, id: str) -> dict[str, Any]:
        task = self._load(id)
        if task["tool"] == "slow_poll":
            (self._folder / "polled").touch()
        course = task["course"]
        status = course[0]
        if status == "waiting":
            status = "completed" if self.released else "working"
        elif status == "input_required" and self._key(task) in task["answers"]:
            status = course[1]
            task["course"] = course[1:]
        elif len(course) > 1 and status != "input_required":
            task["course"] = course[1:]
        self._save(task)
        return {"resultType": "complete", **self._about(task), **self._state(task, status)}

    def _state(self, task: dict[str, Any], status: str) -> dict[str, Any]:
        match status:
            case "working":
                return {"status": "working", "statusMessage": f"{len(task['course'])} steps are left."}
            case "input_required":
                form = {"mode": "form", "message": f"Who is it, {self._key(task)}?", "requestedSchema": FORM}
                asked = {"method": "elicitation/create", "params": form}
                return {"status": status, "inputRequests": {self._key(task): asked}}
            case "sampling":
                if "sample" in task["answers"]:
                    return {"status": "completed", "result": _text(json.dumps(task["answers"]))}
                asked = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
                return {"status": "input_required", "inputRequests": {"sample": asked}}
            case "completed":
                data = {"structuredContent": {"n": "one"}} if task["tool"] == "wrong_data" else {}
                answers = f" {json.dumps(task['answers'])}" if task["answers"] else ""
                return {"status": status, "result": {**_text(f"{task['tool']} done{answers}"), **data}}
            case "error":
                return {"status": "completed", "result": {**_text("It did not work."), "isError": True}}
            case "failed":
                error = {"code": -32603, "message": "API rate limit exceeded"}
                return {"status": status, "error": error, "statusMessage": "Tool execution failed."}
            case "gone":
                raise RpcError(-32602, "Failed to retrieve task: Task has expired")
            case _:
                return {"status": status}

    @property
    def released(self) -> bool:
        return (self._folder / "release").exists()

    def tool_of(self, id: str) -> str:
        return str(self._load(id)["tool"])

    def update(self, id: str, responses: dict[str, Any]) -> dict[str, Any]:
        task = self._load(id)
        self.effect(method="tasks/update", task=id, responses=responses)
        task["answers"] |= {key: answer for key, answer in responses.items() if key not in task["answers"]}
        self._save(task)
        return {"resultType": "complete"}

    def cancel(self, id: str) -> dict[str, Any]:
        task = self._load(id)
        self.effect(method="tasks/cancel", task=id)
        self._save({**task, "course": ["cancelled"]})
        return {"resultType": "complete"}

    def _key(self, task: dict[str, Any]) -> str:
        return f"question {len(COURSES[task['tool']]) - len(task['course']) + 1}"

    def _about(self, task: dict[str, Any]) -> dict[str, Any]:
        about = {"taskId": task["taskId"], "createdAt": CREATED, "lastUpdatedAt": CREATED}
        return {**about, "ttlMs": 3_600_000, "pollIntervalMs": 20}

    def _load(self, id: str) -> dict[str, Any]:
        path = self._folder / f"{id}.task"
        if not path.exists():
            raise RpcError(-32602, "Failed to retrieve task: Task not found")
        task: dict[str, Any] = json.loads(path.read_text())
        return task

    def _save(self, task: dict[str, Any]) -> None:
        path = self._folder / f"{task['taskId']}.task"
        path.with_suffix(".new").write_text(json.dumps(task))
        path.with_suffix(".new").rename(path)


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": False, "resultType": "complete"}


class TaskServer:
    def __init__(self, folder: Path, ttl: int = 0) -> None:
        self._tasks = Tasks(folder)
        self._ttl = ttl
        self._lists = 0

    def answer(self, message: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
        try:
            answer = {"result": self._result(message, headers)}
        except RpcError as refused:
            answer = {"error": refused.error}
        return {"jsonrpc": "2.0", "id": message["id"], **answer}

    def holds(self, message: dict[str, Any]) -> bool:
        """Returns whether the answer must wait for the release."""
        params = message.get("params") or {}
        is_slow = message["method"] == "tools/call" and params["name"] == "slow_call"
        is_slow = is_slow or (message["method"] == "tasks/get" and self._tasks.tool_of(params["taskId"]) == "slow_poll")
        return is_slow and not self._tasks.released

    def _result(self, message: dict[str, Any], headers: dict[str, str] | None) -> dict[str, Any]:
        method, params = message["method"], message.get("params") or {}
        meta = params.get("_meta") or {}
        capabilities = meta.get("io.modelcontextprotocol/clientCapabilities") or {}
        has_tasks = EXTENSION in (capabilities.get("extensions") or {})
        if method.startswith("tasks/"):
            if not has_tasks:
                raise self._missing()
            if headers is not None and headers.get("mcp-name") != params["taskId"]:
                raise RpcError(-32020, f"the header Mcp-Name must be {params['taskId']}")
        match method:
            case "server/discover":
                supported: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}}}
                return {**self._cached(0), "supportedVersions": [VERSION], "capabilities": supported}
            case "tools/list":
                return {**self._cached(self._ttl), "tools": self._listed()}
            case "tools/call" if params["name"] == "plain":
                return _text("plain done")
            case "tools/call" if not has_tasks:
                raise self._missing()
            case "tools/call":
                return self._tasks.create(params["name"], params.get("arguments") or {})
            case "tasks/get":
                return self._tasks.get(params["taskId"])
            case "tasks/update":
                return self._tasks.update(params["taskId"], params["inputResponses"])
            case "tasks/cancel":
                return self._tasks.cancel(params["taskId"])
            case _:
                raise RpcError(-32601, f"{method} is unknown")

    def _listed(self) -> list[dict[str, Any]]:
        self._lists += 1
        about = f"List {self._lists}." if self._ttl else "Does work."
        schema = {"type": "object"}
        output = {"wrong_data": {"type": "object", "properties": {"n": {"type": "integer"}}}}
        return [
            {"name": name, "description": about, "inputSchema": schema}
            | ({"outputSchema": output[name]} if name in output else {})
            for name in (*COURSES, "plain")
        ]

    def _cached(self, ttl: int) -> dict[str, Any]:
        return {"resultType": "complete", "ttlMs": ttl, "cacheScope": "private"}

    def _missing(self) -> RpcError:
        return RpcError(-32021, "Missing capability", {"requiredCapabilities": {"extensions": {EXTENSION: {}}}})


# --- transports ------------------------------------------------------------------------------------------------------


def serve_stdio(server: TaskServer) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            print(json.dumps(server.answer(message)), flush=True)


async def serve_http(server: TaskServer, port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            async for headers, message in _requests(reader):
                if "id" not in message:
                    writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
                    continue
                answer = server.answer(message, headers)
                while server.holds(message):  # noqa: ASYNC110, a file has no event
                    await asyncio.sleep(0.01)
                body = json.dumps(answer).encode()
                status = b"200 OK" if "result" in answer else b"400 Bad Request"
                head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                writer.write(head % (status, len(body)) + body)
                await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", port)
    print("Uvicorn running", file=sys.stderr, flush=True)
    await listening.serve_forever()


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[tuple[dict[str, str], dict[str, Any]]]:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = [line.split(":", 1) for line in head.split("\r\n")[1:] if ":" in line]
        headers = {name.lower(): value.strip() for name, value in lines}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        yield headers, json.loads(body) if body else {}


if __name__ == "__main__":
    arguments = sys.argv[1:]
    milliseconds = int(arguments[arguments.index("--ttl") + 1]) if "--ttl" in arguments else 0
    made = TaskServer(Path(arguments[0]), milliseconds)
    if len(arguments) > 1 and arguments[1].isdigit():
        asyncio.run(serve_http(made, int(arguments[1])))
    else:
        serve_stdio(made)
