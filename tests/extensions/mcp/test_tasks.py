"""Calls that an MCP server runs as tasks, over stdio and HTTP. Both servers are written from the specification."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.extensions.mcp.mcp_servers import ROOT, context_with, process_of
from tests.support.server_process import free_port
from turnstream.extensions.mcp.connection import McpTiming
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.servers import McpServers
from turnstream.tools.policy import Policy
from turnstream.tools.tool import Outcome, PersonAnswer, PersonQuestion, ToolContext
from turnstream.tools.toolset import Toolset

MODULE = "tests.extensions.mcp.mcp_task_server"
LIBRARY = "tests.extensions.mcp.mcp_task_library"
TIMING = McpTiming(connect_timeout=60, pause=0.01, shortest_poll=0.001)


@dataclass
class Tasking:
    servers: McpServers
    folder: Path
    process: psutil.Process | None = None
    declared: McpServer | None = None

    async def call(self, tool: str, context: ToolContext | None = None) -> Outcome:
        toolset = Toolset([], sources=[self.servers])
        return await toolset.run(f"tasks__{tool}", '{"n": 1}', context or context_with())

    def effects(self, method: str = "") -> list[Any]:
        """Returns the requests that had an effect, as the MCP server has logged them."""
        path = self.folder / "effects.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [effect for effect in map(json.loads, lines) if method in {"", effect["method"]}]


@asynccontextmanager
async def listening(module: str, folder: Path, port: int) -> AsyncIterator[psutil.Process]:
    command = [sys.executable, "-m", module, str(folder), str(port)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    while b"Uvicorn running" not in (line := await process.stderr.readline()):
        assert line, "it did not start"
    draining = asyncio.create_task(process.stderr.read())
    try:
        yield psutil.Process(process.pid)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await draining


@asynccontextmanager
async def tasking(kind: str, folder: Path, policy: Policy | None = None) -> AsyncIterator[Tasking]:
    async with AsyncExitStack() as stack:
        process = None
        if kind == "stdio":
            declared = McpServer("tasks", command=sys.executable, args=("-m", MODULE, str(folder)), cwd=ROOT)
        else:
            port = free_port()
            module = LIBRARY if kind == "library" else MODULE
            process = await stack.enter_async_context(listening(module, folder, port))
            declared = McpServer("tasks", url=f"http://127.0.0.1:{port}/mcp")
        declared = replace(declared, policy=policy or Policy())
        servers = await stack.enter_async_context(McpServers([declared], TIMING))
        yield Tasking(servers, folder, process, declared)


EXPIRED = "Failed to retrieve task: Task has expired."
EVERY = pytest.mark.parametrize("kind", ["stdio", "http", "library"])
OURS = pytest.mark.parametrize("kind", ["stdio", "http"])


def asked_with(answer: PersonAnswer | None, questions: list[PersonQuestion]) -> ToolContext:
    async def ask(question: PersonQuestion) -> PersonAnswer | None:
        questions.append(question)
        return answer

    return replace(context_with(), ask=ask)


@EVERY
async def test_the_result_of_a_task_is_that_of_its_call(kind: str, tmp_path: Path) -> None:
    progress: list[str] = []
    async with tasking(kind, tmp_path) as tasks:
        outcome = await tasks.call("work", context_with(progress))
    assert (outcome.kind, outcome.text) == ("ok", "work done")
    assert len(tasks.effects()) == 1
    assert progress == (["Begun."] if kind == "library" else ["Accepted.", "2 steps are left.", "1 steps are left."])


@EVERY
async def test_a_task_asks_the_person_once(kind: str, tmp_path: Path) -> None:
    questions: list[PersonQuestion] = []
    async with tasking(kind, tmp_path) as tasks:
        outcome = await tasks.call("ask", asked_with(PersonAnswer("accept", {"name": "Ada"}), questions))
    assert outcome.kind == "ok"
    assert '{"action": "accept", "content": {"name": "Ada"}}' in outcome.text
    (question,) = questions
    assert question.message.startswith("Who is it")
    assert question.schema is not None
    assert [effect["method"] for effect in tasks.effects()] == ["tools/call", "tasks/update"]


@OURS
async def test_a_task_may_ask_more_than_once(kind: str, tmp_path: Path) -> None:
    questions: list[PersonQuestion] = []
    async with tasking(kind, tmp_path) as tasks:
        outcome = await tasks.call("ask_twice", asked_with(None, questions))
    assert [question.message for question in questions] == ["Who is it, question 1?", "Who is it, question 2?"]
    assert outcome.text.count('"action": "decline"') == 2


@OURS
@pytest.mark.parametrize(
    ("tool", "outcome_kind", "text"),
    [
        ("quick", "ok", "quick done"),
        ("plain", "ok", "plain done"),
        ("tool_error", "error", "It did not work."),
        (
            "fail",
            "error",
            "The MCP server tasks failed to do the task: Tool execution failed. API rate limit exceeded",
        ),
        ("stop", "error", "The MCP server tasks has cancelled the task."),
        (
            "vanish",
            "unknown",
            f"The MCP server tasks does not know the task any more: {EXPIRED} What the call has done is not known.",
        ),
        ("odd", "error", "The MCP server tasks sent a state of its task that the protocol does not have."),
        ("sample", "error", "The MCP server tasks asks for what it may not ask for in a task."),
    ],
)
async def test_every_end_of_a_task_is_an_outcome(
    kind: str, tool: str, outcome_kind: str, text: str, tmp_path: Path
) -> None:
    async with tasking(kind, tmp_path) as tasks:
        outcome = await tasks.call(tool)
    assert (outcome.kind, outcome.text) == (outcome_kind, text)
    assert len(tasks.effects("tools/call")) == (tool != "plain")


async def test_the_data_of_a_task_is_checked_as_that_of_a_call(tmp_path: Path) -> None:
    async with tasking("stdio", tmp_path) as tasks:
        outcome = await tasks.call("wrong_data")
    assert outcome.kind == "error"
    assert "`n`: 'one' is not of type 'integer'" in outcome.text


@EVERY
async def test_a_cancelled_call_cancels_its_task(kind: str, tmp_path: Path) -> None:
    begun = asyncio.Event()
    async with tasking(kind, tmp_path) as tasks:
        questions: list[PersonQuestion] = []

        async def ask(question: PersonQuestion) -> PersonAnswer | None:
            questions.append(question)
            begun.set()
            await asyncio.Event().wait()
            return None

        calling = asyncio.create_task(tasks.call("ask", replace(context_with(), ask=ask)))
        await begun.wait()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    assert [effect["method"] for effect in tasks.effects()] == ["tools/call", "tasks/cancel"]


async def test_a_call_that_takes_too_long_cancels_its_task(tmp_path: Path) -> None:
    async with tasking("stdio", tmp_path, Policy(timeout=0.3)) as tasks:
        outcome = await tasks.call("wait")
    assert outcome.kind == "timeout"
    assert [effect["method"] for effect in tasks.effects()] == ["tools/call", "tasks/cancel"]


async def test_a_task_outlives_the_connection_and_the_server(tmp_path: Path) -> None:
    begun = asyncio.Event()
    async with tasking("stdio", tmp_path) as tasks:
        calling = asyncio.create_task(tasks.call("wait", context_with(begun=begun)))
        await begun.wait()
        assert tasks.declared is not None
        process_of(tasks.declared).kill()
        (tmp_path / "release").touch()
        outcome = await calling
    assert (outcome.kind, outcome.text) == ("ok", "wait done")
    assert len(tasks.effects()) == 1
