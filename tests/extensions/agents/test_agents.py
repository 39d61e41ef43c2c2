"""Agents as tools: each call of an agent is a turn in a new chat, which belongs to the calling turn."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.support.agents import call, ended, job_of, post, results, script
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from tests.support.sweeping import swept
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ConfigError
from turnstream.domain.turns import Turn
from turnstream.extensions.agents.agent import Agent
from turnstream.extensions.agents.children import Children, answer_of
from turnstream.extensions.agents.tool import AGENTS, AgentTable, AgentTool, agent_tool, bind
from turnstream.extensions.archives.archives import OwnerExport
from turnstream.extensions.retention.aged import old_chats
from turnstream.extensions.search.index import SearchIndex
from turnstream.libraries.tool_sources.declarations import read_declarations
from turnstream.scripted import Pause, message_of, text, tool_use
from turnstream.tools.tool import ToolContext, tool
from turnstream.tools.toolset import Toolset

ECHO = Agent("echo", "Answers.", "Answer in one word.")


@tool(approval="always")
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    worker = Agent("worker", "Works.", "Work.", tools=("pay", "echo", "worker"))
    async with serving(database_url, Toolset([agent_tool(ECHO), agent_tool(worker), pay])) as started:
        yield started


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url) as client:
        yield client


async def test_the_answer_of_an_agent_is_the_result_and_its_chat_is_in_no_list(server: Server, api: Client) -> None:
    first = message_of(call("echo", "a", "Say one."), call("echo", "b", "Say two."))
    model, provider = script(server, first, message_of(text("One.")), message_of(text("Two.")), message_of(text("3.")))
    exchange = await api.json("POST", "/api/turns", 201, json=post(model))
    turn = await ended(api, exchange)
    assert turn["status"] == "complete"
    assert sorted(results(turn).values()) == ["One.", "Two."]
    asked = [request for request in provider.requests if request.system == ECHO.prompt]
    assert sorted(str(request.messages)[-200:].count("Say") for request in asked) == [1, 1]
    assert [request.tools for request in asked] == [(), ()]
    data = next(block["data"] for block in turn["blocks"] if block["type"] == "tool_result")
    assert data["agent"] == "echo"
    chats = (await api.json("GET", "/api/chats"))["chats"]
    assert [chat["id"] for chat in chats] == [turn["chat_id"]]
    child = await api.json("GET", f"/api/chats/{data['chat']}/turns/{data['turn']}")
    assert (child["status"], child["labels"]["agent"]) == ("complete", "echo")
    await api.json("DELETE", f"/api/chats/{turn['chat_id']}")
    await api.json("GET", f"/api/chats/{data['chat']}", 404)


async def test_a_question_of_an_agent_is_in_the_inbox_and_the_turn_waits_for_it(server: Server, api: Client) -> None:
    model, _ = script(
        server,
        message_of(call("worker", "a")),
        message_of(tool_use("pay", {"euros": 3}, "p")),
        message_of(text("It is paid.")),
        message_of(text("Done.")),
    )
    exchange = await api.json("POST", "/api/turns", 201, json=post(model))
    job = await job_of(api, exchange)
    assert job["kind"] == "child"
    while not (calls := (await api.json("GET", "/api/waiting"))["calls"]):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    (waiting,) = calls
    assert (waiting["chat"], waiting["name"]) == (job["child"]["chat"], "pay")
    assert waiting["title"] == "Research it.: worker"
    why = await api.json("GET", exchange["stream_url"].replace("/stream", "/why"))
    assert any("waits for an approval of pay" in reason for reason in why["reasons"])
    child = f"/api/chats/{job['child']['chat']}/turns/{job['child']['turn']}"
    (action,) = (await api.json("GET", child))["actions"]
    answer = {"type": "approve", "tool_use_id": "p", "input_digest": action["input_digest"]}
    await api.json("POST", f"{child}/actions", 202, json={"actions": [answer]})
    assert results(await ended(api, exchange)) == {"a": "It is paid."}


@pytest.mark.extensions("agents", "search")
async def test_the_words_of_an_agent_are_found_and_lead_to_its_chat(server: Server, api: Client) -> None:
    model, _ = script(server, *map(message_of, (call("echo", "a"), text("Lighthouses."), text("Done."))))
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    await swept(SearchIndex(server.services.storage.database).catch_up())
    (found,) = (await api.json("GET", "/api/chats", params={"q": "lighthouse"}))["chats"]
    (result,) = [block for block in turn["blocks"] if block["type"] == "tool_result"]
    assert (found["id"], found["title"]) == (result["data"]["chat"], "Research it.: echo")


@pytest.mark.parametrize("way", ["cancel", "stop", "delete"])
async def test_the_turn_of_an_agent_ends_with_its_call(server: Server, api: Client, way: str) -> None:
    pause = Pause()
    model, _ = script(
        server, message_of(call("echo", "a")), [pause, *message_of(text("Late."))], message_of(text("So."))
    )
    exchange = await api.json("POST", "/api/turns", 201, json=post(model))
    job = await job_of(api, exchange)
    await pause.reached.wait()
    turn = exchange["assistant_turn"]
    path, child = f"/api/chats/{turn['chat_id']}/turns/{turn['id']}", job["child"]
    match way:
        case "cancel":
            await api.json("POST", f"{path}/cancel", 202)
        case "stop":
            await api.json("POST", f"{path}/calls/a/cancel", 202)
        case _:
            await api.json("DELETE", f"/api/chats/{turn['chat_id']}")
    gone = 404 if way == "delete" else 200
    while True:
        found = await api.get(f"/api/chats/{child['chat']}/turns/{child['turn']}")
        if found.status_code == 404 or found.json()["status"] == "cancelled":
            break
        await asyncio.sleep(0.01)
    assert found.status_code == gone
    if way == "stop":
        assert "The user stopped this call" in results(await ended(api, exchange))["a"]


async def test_agents_call_agents_to_a_depth(server: Server, api: Client) -> None:
    deeper = [message_of(call("worker", name)) for name in "abcd"]
    up = [message_of(text(word)) for word in ("Too deep.", "Up.", "Up again.", "There.")]
    model, _ = script(server, *deeper, *up)
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    assert results(turn) == {"a": "Up again."}
    assert len((await api.json("GET", "/api/chats"))["chats"]) == 1


async def test_a_failure_of_an_agent_is_a_result_that_the_model_reads(server: Server, api: Client) -> None:
    model, _ = script(server, message_of(call("worker", "a"), call("echo", "b", " ")), message_of(text("So.")))
    exchange = await api.json("POST", "/api/turns", 201, json=post(model))
    turn = await ended(api, exchange)
    assert results(turn)["b"] == "`task` must be a text, and not empty."


def test_an_agent_that_names_no_tool_of_the_server_stops_the_start() -> None:
    lost = agent_tool(Agent("lost", "Lost.", "Lost.", tools=("gone",)))
    with pytest.raises(ConfigError, match=r"^The agent lost: `tools`: There is no tool 'gone'"):
        bind(Toolset([lost]), cast("Children", None))


async def test_agents_of_the_tools_file(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text('[agents.scout]\ndescription = "Scouts."\nprompt = "Scout."\ntimeout = 60\n')
    async with serving(database_url, tools_file=file) as server, Client(server.url) as api:
        model, _ = script(server, message_of(call("scout", "a")), message_of(text("A hill.")), message_of(text("So.")))
        turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    assert results(turn) == {"a": "A hill."}


def children_of(server: Server) -> Children:
    (children,) = {tool.place.children for tool in server.services.resolver.toolset.own if isinstance(tool, AgentTool)}
    assert children is not None
    return children


async def test_a_turn_of_an_agent_that_nobody_waits_for_is_stopped_without_a_report(
    server: Server, api: Client
) -> None:
    pause = Pause()
    model, _ = script(server, message_of(call("echo", "a")), [pause, *message_of(text("Late."))])
    exchange = await api.json("POST", "/api/turns", 201, json=post(model))
    job = await job_of(api, exchange)
    await pause.reached.wait()
    assert await children_of(server).stop_unwanted() == 0
    connection = await asyncpg.connect(server.database_url)
    await connection.execute("UPDATE jobs SET settled_at = now(), replica = NULL")
    await connection.close()
    await children_of(server).stop_unwanted()
    child = await api.events(f"/api/chats/{job['child']['chat']}/turns/{job['child']['turn']}/stream")
    assert child[-1].name == "turn_cancelled"


async def test_a_call_begins_one_turn_however_often_it_is_run(server: Server, api: Client) -> None:
    model, _ = script(server, message_of(text("Hello.")), message_of(text("One.")))
    parent = (await api.json("POST", "/api/turns", 201, json=post(model)))["assistant_turn"]
    chat, turn = UUID(parent["chat_id"]), UUID(parent["id"])
    context = ToolContext("local", chat, turn, "a", "key", lambda _: None, job=uuid4())
    begun = await asyncio.gather(*(children_of(server).begin(ECHO, context, "Say it.") for _ in range(5)))
    assert [each == begun[0] for each in begun] == [True] * 5
    assert isinstance(begun[0], dict)
    await api.json("GET", f"/api/chats/{begun[0]['chat']}/turns/{begun[0]['turn']}")


async def test_a_turn_calls_a_limited_number_of_agents(database_url: str) -> None:
    toolset = Toolset([agent_tool(ECHO)])
    async with serving(database_url, toolset, agent_children=1, parallel_jobs=1) as server, Client(server.url) as api:
        first = message_of(call("echo", "a"), call("echo", "b"))
        model, _ = script(server, first, message_of(text("One.")), message_of(text("So.")))
        turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    assert sorted(results(turn).values()) == ["A turn may call agents 1 times, and did.", "One."]


async def test_one_slot_is_enough_for_a_family(database_url: str) -> None:
    worker = Agent("worker", "Works.", "Work.", tools=("worker",))
    toolset = Toolset([agent_tool(worker)])
    async with serving(database_url, toolset, concurrent_turns=1) as server, Client(server.url) as api:
        deep = [message_of(call("worker", name)) for name in "ab"]
        model, _ = script(server, *deep, *(message_of(text(word)) for word in ("Deep.", "Up.", "There.")))
        turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    assert results(turn) == {"a": "Up."}


def test_the_agents_of_the_page_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/agents.md").read_text(encoding="utf-8")
    table = page.split("```toml\n", 1)[1].split("```", 1)[0]
    (tmp_path / "tools.toml").write_text(table)
    (made,) = AGENTS.make(read_declarations(tmp_path / "tools.toml", {}, {"agents": AgentTable})).tools
    assert isinstance(made, AgentTool)
    assert (made.spec.name, made.policy.background, made.agent.tools[0]) == ("researcher", True, "web_search")
    assert made.policy.seconds == 1800


async def test_the_deadline_of_a_call_moves_while_its_agent_makes_progress(server: Server, api: Client) -> None:
    pause = Pause()
    begun = list(message_of(text("One.")))
    model, _ = script(server, message_of(call("echo", "a")), [*begun[:3], pause, *begun[3:]], message_of(text("So.")))
    exchange = await api.json("POST", "/api/turns", 201, json=post(model))
    job = await job_of(api, exchange)
    await pause.reached.wait()
    connection = await asyncpg.connect(server.database_url)
    while not await connection.fetchval("SELECT count(*) FROM rounds WHERE turn_id = $1", job["child"]["turn"]):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    left = "SELECT extract(epoch FROM deadline - now()) FROM jobs"
    await connection.execute("UPDATE jobs SET deadline = now() + interval '60 s'")
    children = children_of(server)
    handle = await children.progress({**job["child"], "rounds": 0}, UUID(job["id"]), 600)
    assert await connection.fetchval(left) > 500
    await connection.execute("UPDATE jobs SET deadline = now() + interval '60 s'")
    assert await children.progress(handle, UUID(job["id"]), 600) == handle
    assert await connection.fetchval(left) < 100
    await connection.close()
    pause.go.set()
    assert results(await ended(api, exchange)) == {"a": "One."}


async def test_labels_of_a_person_wake_and_stop_nothing(server: Server, api: Client) -> None:
    pause, later = Pause(), Pause()
    model, _ = script(
        server, message_of(call("echo", "a")), [pause, *message_of(text("One."))], message_of(text("So."))
    )
    exchange = await api.json("POST", "/api/turns", 201, json=post(model))
    job = await job_of(api, exchange)
    await pause.reached.wait()
    connection = await asyncpg.connect(server.database_url)
    await connection.execute("UPDATE jobs SET due_at = 'infinity'")
    await ended(api, await api.json("POST", "/api/turns", 201, json={**post("plain"), "labels": {"job": job["id"]}}))
    assert await connection.fetchval("SELECT due_at = 'infinity' FROM jobs")
    await connection.close()
    pause.go.set()
    await ended(api, exchange)
    labels = {"agent": "echo", "job": job["id"]}
    slow, _ = script(server, [later, *message_of(text("More."))])
    more = await api.json(
        "POST", f"/api/chats/{job['child']['chat']}/turns", 201, json={**post(slow), "labels": labels}
    )
    await later.reached.wait()
    assert await children_of(server).stop_unwanted() == 0
    later.go.set()
    assert (await ended(api, more))["status"] == "complete"


async def test_the_export_of_a_chat_has_the_chats_of_its_agents(server: Server, api: Client) -> None:
    model, _ = script(
        server,
        message_of(call("worker", "a")),
        message_of(call("echo", "b")),
        *(message_of(text(word)) for word in ("One.", "Two.", "So.")),
    )
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    await api.json("POST", "/api/turns", 201, json=post("plain"))
    connection = await asyncpg.connect(server.database_url)
    family = await connection.fetch("SELECT id FROM chats WHERE of_turn IS NOT NULL OR id = $1", UUID(turn["chat_id"]))
    await connection.close()
    export = OwnerExport(server.services.storage.database, "local", UUID(turn["chat_id"]))
    chats = {part.name.split("/")[1] async for part in export.parts() if part.name.startswith("chats/")}
    assert chats == {str(row["id"]) for row in family}
    assert len(chats) == 3


async def test_the_chat_of_an_agent_is_kept_as_long_as_the_turn_that_has_called_it(server: Server, api: Client) -> None:
    model, _ = script(server, message_of(call("echo", "a")), message_of(text("One.")), message_of(text("So.")))
    turn = await ended(api, await api.json("POST", "/api/turns", 201, json=post(model)))
    connection = await asyncpg.connect(server.database_url)
    await connection.execute("UPDATE chats SET updated_at = now() - interval '40 days' WHERE of_turn IS NOT NULL")
    database = server.services.storage.database
    assert await swept(old_chats(database, 30)) == 0
    await connection.execute("UPDATE chats SET updated_at = now() - interval '40 days'")
    assert await swept(old_chats(database, 30)) == 1
    assert await connection.fetchval("SELECT count(*) FROM chats WHERE owner = 'local'") == 0
    await connection.close()
    await api.json("GET", f"/api/chats/{turn['chat_id']}", 404)


async def test_a_cut_and_continued_answer_is_complete() -> None:
    blocks = [Block(0, 0, 0, "text", "Look."), Block(1, 0, 1, "tool_use", "{}", tool_use_id="a", name="look")]
    blocks += [Block(2, 1, 0, "text", "The hill "), Block(3, 2, 0, "text", "is high.")]
    turn = Turn(uuid4(), uuid4(), None, "assistant", "complete", blocks=tuple(blocks))
    assert answer_of(turn) == "The hill is high."
