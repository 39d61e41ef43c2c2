"""Tasks of MCP servers as background jobs: a job stores the id of its task, so a crash does not repeat the call."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.extensions.mcp.test_elicitation import asked
from tests.extensions.mcp.test_tasks import MODULE, TIMING, Tasking, listening
from tests.integration.test_stopped_jobs import WAYS, stop_by
from tests.support.harness import Asked, Harness, Replica, results_of
from tests.support.http_client import Client, Said
from tests.support.http_server import serving
from tests.support.locks import connection_to
from tests.support.openapi_document import Document
from tests.support.server_process import Server, free_port
from turnstream.domain.turns import RecoveryPolicy
from turnstream.engine.tool_gate import OUTCOME_UNKNOWN
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.servers import McpServers
from turnstream.scripted import Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.tools.policy import Policy
from turnstream.tools.toolset import Toolset

ADA = {"action": "accept", "content": {"name": "Ada"}}


@asynccontextmanager
async def background(folder: Path, *, policy: bool = True) -> AsyncIterator[Tasking]:
    port = free_port()
    declared = McpServer("tasks", url=f"http://127.0.0.1:{port}/mcp", policy=Policy(background=policy))
    async with listening(MODULE, folder, port), McpServers([declared], TIMING) as servers:
        yield Tasking(servers, folder)


def provider(tool: str) -> ScriptedProvider:
    return ScriptedProvider([message_of(tool_use(f"tasks__{tool}", {}, "a")), answer()])


def answer() -> Reply:
    return message_of(text("Done."))


async def until(met: Callable[[], object]) -> None:
    while not met():  # noqa: ASYNC110, files of another process have no event
        await asyncio.sleep(0.01)


async def in_state(harness: Harness, asked: Asked, state: str) -> None:
    while [job.state for job in (await harness.turn(asked)).jobs] != [state]:  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.01)


async def begun(harness: Harness, replica: Replica, tasks: Tasking) -> Asked:
    asked = await harness.ask(tools=tasks.servers.tools().values())
    replica.worker.wake()
    return asked


@pytest.mark.parametrize("policy", [True, False], ids=["a job from the begin", "a task becomes a job"])
async def test_a_job_polls_a_task_and_keeps_its_id(harness: Harness, policy: bool, tmp_path: Path) -> None:
    async with background(tmp_path, policy=policy) as tasks:
        toolset = Toolset([], sources=[tasks.servers])
        async with harness.replica(provider("work"), toolset=toolset, listens=True) as replica:
            asked = await begun(harness, replica, tasks)
            turn = await harness.finish(replica, asked)
    assert results_of(turn)["a"].text == "work done"
    assert [(job.kind, job.attempt > 1) for job in turn.jobs] in ([], [("mcp_task", True)])
    assert len(tasks.effects()) == 1


async def test_a_call_without_a_task_is_no_job(harness: Harness, tmp_path: Path) -> None:
    async with background(tmp_path, policy=False) as tasks:
        toolset = Toolset([], sources=[tasks.servers])
        async with harness.replica(provider("plain"), toolset=toolset, listens=True) as replica:
            turn = await harness.finish(replica, await begun(harness, replica, tasks))
    assert (results_of(turn)["a"].text, turn.attempt) == ("plain done", 1)


async def test_calls_of_a_round_are_jobs_and_others_and_each_has_its_result(harness: Harness, tmp_path: Path) -> None:
    names = ("plain", "work", "quick", "fail")
    calls = message_of(*(tool_use(f"tasks__{tool}", {}, tool) for tool in names))
    async with background(tmp_path, policy=False) as tasks:
        toolset = Toolset([], sources=[tasks.servers])
        async with harness.replica(ScriptedProvider([calls, answer()]), toolset=toolset, listens=True) as replica:
            turn = await harness.finish(replica, await begun(harness, replica, tasks))
    texts = {id: block.text for id, block in results_of(turn).items()}
    failed = "The MCP server tasks failed to do the task: Tool execution failed. API rate limit exceeded"
    assert texts == {"plain": "plain done", "work": "work done", "quick": "quick done", "fail": failed}
    assert len(tasks.effects("tools/call")) == 3


@pytest.mark.parametrize(
    ("tool", "place", "text"),
    [
        ("slow_call", "call", OUTCOME_UNKNOWN),
        ("wait", "handle", "wait done"),
        ("slow_poll", "poll", "slow_poll done"),
    ],
)
async def test_after_a_crash_a_task_is_polled_on_and_its_call_is_not_made_again(
    harness: Harness, tool: str, place: str, text: str, tmp_path: Path
) -> None:
    async with background(tmp_path) as tasks:
        toolset = Toolset([], sources=[tasks.servers])
        async with harness.replica(provider(tool), toolset=toolset, listens=True) as first:
            asked = await begun(harness, first, tasks)
            match place:
                case "call":
                    await until(tasks.effects)
                case "handle":
                    await in_state(harness, asked, "detached")
                    assert [job.kind for job in (await harness.turn(asked)).jobs] == ["mcp_task"]
                case _:
                    await until((tmp_path / "polled").exists)
            await first.kill()
            (tmp_path / "release").touch()
            answers = ScriptedProvider([answer()])
            async with harness.replica(answers, toolset=toolset, listens=True) as second:
                await second.queue.take_over([first.queue.replica])
                second.jobs.receive("jobs")
                turn = await harness.finish(second, asked)
    assert results_of(turn)["a"].text == text
    assert [effect["method"] for effect in tasks.effects()] == ["tools/call"]


async def test_every_end_of_a_task_is_the_outcome_of_its_job(harness: Harness, tmp_path: Path) -> None:
    ends = {
        "fail": "The MCP server tasks failed to do the task: Tool execution failed. API rate limit exceeded",
        "odd": "The MCP server tasks sent a state of its task that the protocol does not have.",
        "plain": "plain done",
    }
    async with background(tmp_path) as tasks:
        toolset = Toolset([], sources=[tasks.servers])
        calls = message_of(*(tool_use(f"tasks__{tool}", {}, tool) for tool in ends))
        async with harness.replica(ScriptedProvider([calls, answer()]), toolset=toolset, listens=True) as replica:
            asked = await begun(harness, replica, tasks)
            turn = await harness.finish(replica, asked)
    assert {id: block.text for id, block in results_of(turn).items()} == ends
    assert len(tasks.effects("tools/call")) == 2


async def test_a_cancelled_turn_cancels_its_task(shared_database_url: str, document: Document, tmp_path: Path) -> None:
    async with background(tmp_path) as tasks:
        toolset = Toolset([], sources=[tasks.servers])
        async with serving(shared_database_url, toolset) as server, Client(server.url, document) as client:
            model = server.scripts.model(message_of(tool_use("tasks__wait", {}, "a")), answer())
            turn = await client.say(await client.chat(), model=model)
            await until(lambda: tasks.effects("tools/call"))
            while [job["state"] for job in (await client.json("GET", turn.url))["jobs"]] != ["detached"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await client.json("POST", f"{turn.url}/cancel", 202)
            await until(lambda: tasks.effects("tasks/cancel"))
    assert [effect["method"] for effect in tasks.effects()] == ["tools/call", "tasks/cancel"]


async def answer_next(client: Client, turn: Said, content: dict[str, str], seen: set[str]) -> None:
    """Waits for a question of the turn whose digest is not in `seen`, and answers it."""
    while True:
        actions = (await client.json("GET", turn.url))["actions"]
        if new := [action for action in actions if action["input_digest"] not in seen]:
            break
        await asyncio.sleep(0.01)
    (action,) = new
    seen.add(action["input_digest"])
    ids = {"tool_use_id": action["tool_use_id"], "input_digest": action["input_digest"]}
    answered = {"type": "answer", **ids, "action": "accept", "content": content}
    await client.json("POST", f"{turn.url}/actions", 202, json={"actions": [answered]})


async def test_a_requirement_of_a_task_becomes_a_question_of_the_turn(
    shared_database_url: str, document: Document, tmp_path: Path
) -> None:
    async with background(tmp_path) as tasks:
        toolset = Toolset([], sources=[tasks.servers])
        async with serving(shared_database_url, toolset) as server, Client(server.url, document) as client:
            model = server.scripts.model(message_of(tool_use("tasks__ask_twice", {}, "a")), answer())
            turn = await client.say(await client.chat(), model=model)
            event = await asked(client, turn)
            (action,) = event.data["calls"]
            assert (event.id, action["type"], action["tool_use_id"]) == (None, "elicitation", "a")
            assert action["input"]["message"] == "Who is it, question 1?"
            (waiting,) = (await client.json("GET", "/api/waiting"))["calls"]
            assert (waiting["turn"], waiting["type"]) == (turn.assistant["id"], "elicitation")
            seen = set[str]()
            for name in ("Ada", "Bob"):
                await answer_next(client, turn, {"name": name}, seen)
            await client.events(turn.stream_url)
            blocks = (await client.json("GET", turn.url))["blocks"]
    (result,) = [block["text"] for block in blocks if block["type"] == "tool_result"]
    given = {"question 1": ADA, "question 2": {**ADA, "content": {"name": "Bob"}}}
    assert result == f"ask_twice done {json.dumps(given)}"
    assert [effect["method"] for effect in tasks.effects()] == ["tools/call", "tasks/update", "tasks/update"]


# --- processes that are killed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "place", "text"),
    [
        ("slow_call", "call", OUTCOME_UNKNOWN),
        ("wait", "handle", "wait done"),
        ("wait", "handle of a call that was begun in its turn", "wait done"),
        ("slow_poll", "poll", "slow_poll done"),
        ("ask", "input required", f"ask done {json.dumps({'question 1': ADA})}"),
        ("ask", "answered", f"ask done {json.dumps({'question 1': ADA})}"),
        ("wait", "end", "wait done"),
    ],
)
@pytest.mark.timeout(180)
@pytest.mark.parametrize("policy", [pytest.param("retry", marks=pytest.mark.full), "continue"])
async def test_a_killed_server_takes_its_tasks_up_again(
    database_url: str, document: Document, policy: RecoveryPolicy, tool: str, place: str, text: str, tmp_path: Path
) -> None:
    port = free_port()
    file = tmp_path / "tools.toml"
    is_job = "false" if place.endswith("in its turn") else "true"
    file.write_text(f'[mcp.tasks]\nurl = "http://127.0.0.1:{port}/mcp"\nbackground = {is_job}\n')
    server = Server(database_url, tmp_path, {"TURNSTREAM_TOOLS_FILE": str(file)})
    release = tmp_path / "release"
    async with listening(MODULE, tmp_path, port), Client(server.url, document) as client:
        tasks = Tasking(McpServers([]), tmp_path)
        await server.start()
        try:
            turn = await client.say(await client.chat(), f"/call tasks__{tool} {{}}", limits={"recovery": policy})
            match place:
                case "call":
                    await until(tasks.effects)
                case "poll":
                    await until((tmp_path / "polled").exists)
                case "input required" | "answered":
                    while not (await client.json("GET", turn.url))["actions"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                case _:
                    while [job["state"] for job in (await client.json("GET", turn.url))["jobs"]] != ["detached"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            if place == "end":
                release.touch()
            if place == "answered":
                await answer_next(client, turn, {"name": "Ada"}, set())
            await server.kill()
            release.touch()
            await server.start()
            if place == "input required":
                await answer_next(client, turn, {"name": "Ada"}, set())
            await client.events(turn.stream_url)
            blocks = (await client.json("GET", turn.url))["blocks"]
        finally:
            await server.close()
    assert [block["text"] for block in blocks if block["type"] == "tool_result"] == [text]
    assert len(tasks.effects("tools/call")) == 1
    assert len(tasks.effects("tasks/cancel")) == 0


# --- stops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_a_task_is_cancelled_when_its_call_was_stopped(
    harness: Harness, database_url: str, way: str, tmp_path: Path
) -> None:
    async with background(tmp_path) as tasks, connection_to(database_url) as rows:
        toolset = Toolset([], sources=[tasks.servers])
        async with harness.replica(provider("wait"), toolset=toolset, listens=True) as replica:
            asked = await begun(harness, replica, tasks)
            await in_state(harness, asked, "detached")
            await replica.idle(asked)
            await stop_by(way, harness, replica, asked, rows)
            await until(lambda: tasks.effects("tasks/cancel"))
            while await rows.fetchval("SELECT count(*) FROM stopped_jobs"):  # noqa: ASYNC110, rows have no event
                await asyncio.sleep(0.01)
    assert [effect["method"] for effect in tasks.effects()] == ["tools/call", "tasks/cancel"]


async def test_a_task_is_cancelled_by_another_replica_when_its_server_is_back(
    harness: Harness, database_url: str, tmp_path: Path
) -> None:
    port = free_port()
    declared = McpServer("tasks", url=f"http://127.0.0.1:{port}/mcp", policy=Policy(background=True))
    async with McpServers([declared], TIMING) as servers, connection_to(database_url) as rows:
        tasks, toolset = Tasking(servers, tmp_path), Toolset([], sources=[servers])
        async with listening(MODULE, tmp_path, port):
            await servers.changes.until(lambda: "tasks__wait" in servers.tools())
            async with harness.replica(provider("wait"), toolset=toolset, listens=True) as first:
                asked = await begun(harness, first, tasks)
                await in_state(harness, asked, "detached")
                await first.kill()
        async with harness.replica(ScriptedProvider([]), toolset=toolset, listens=True) as second:
            await stop_by("stopped by its owner", harness, second, asked, rows)
            second.jobs.receive("jobs")
            while not await rows.fetchval("SELECT max(tries) FROM stopped_jobs"):  # noqa: ASYNC110, rows have no event
                await asyncio.sleep(0.01)
            async with listening(MODULE, tmp_path, port):
                await servers.changes.until(lambda: "tasks" in servers.connected)
                while await rows.fetchval("SELECT count(*) FROM stopped_jobs"):
                    await rows.execute("UPDATE stopped_jobs SET due_at = now()")
                    second.jobs.receive("jobs")
                    await asyncio.sleep(0.05)  # waits as long as a try takes, because the try causes no event
    assert [effect["method"] for effect in tasks.effects()] == ["tools/call", "tasks/cancel"]
