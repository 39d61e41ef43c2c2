"""Tools of MCP servers over stdio and HTTP. The servers are `mcp-server-time`, and a server of these tests for other
cases.
"""

import asyncio
import json
import os
import re
import select
import subprocess
import sys
from base64 import b64encode, encodebytes
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from mcp import types
from mcp.types import CallToolResult
from prometheus_client import REGISTRY

from tests.extensions.mcp.mcp_servers import (
    BERLIN,
    OLD_PACES,
    PACES,
    ROOT,
    TIME,
    Announcing,
    context_with,
    declared_servers,
    process_of,
    time_over_http,
)
from tests.support.harness import Harness, results_of, texts_of
from tests.support.pictures import PIXEL
from tests.support.server_process import free_port
from turnstream.extensions.mcp.connection import McpTiming
from turnstream.extensions.mcp.declared import McpServer
from turnstream.extensions.mcp.servers import McpServers
from turnstream.extensions.mcp.tool import McpTool, outcome_of, tool_name, tool_of
from turnstream.scripted import Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.tools.policy import Policy
from turnstream.tools.running.fit import Sizes, fit
from turnstream.tools.schemas import SchemaRoom
from turnstream.tools.tool import File, Outcome, Tool, ToolError, ToolUnavailable
from turnstream.tools.toolset import Toolset

NOW = "time__get_current_time"
# For the older protocol, tests/extensions/mcp/test_elicitation.py has the quick tests.
BOTH_PACES = [pytest.param(PACES, id="new"), pytest.param(OLD_PACES, id="old", marks=pytest.mark.full)]


def at(port: int) -> McpServer:
    return McpServer("time", url=f"http://127.0.0.1:{port}/mcp")


def connecting(*servers: McpServer, connect_timeout: float = 150, **timing: float) -> McpServers:
    """Connects MCP servers. After a failure, the pause before the next connection is short."""
    return McpServers(servers, McpTiming(**{"connect_timeout": connect_timeout, "pause": 0.01} | timing))


def call(id: str) -> Reply:
    return message_of(tool_use(NOW, {"timezone": "Europe/Berlin"}, id))


def answer() -> Reply:
    return message_of(text("It is late."))


@pytest.fixture(params=["stdio", "http", pytest.param("http with sessions", marks=pytest.mark.full)])
async def time_server(request: pytest.FixtureRequest) -> AsyncIterator[McpServer]:
    if request.param == "stdio":
        yield TIME
        return
    port = free_port()
    async with time_over_http(port, *(["--old"] if "sessions" in request.param else [])):
        yield at(port)


# --- in a turn -------------------------------------------------------------------------------------------------------


async def test_a_turn_calls_the_tool_of_a_server_that_others_wrote(harness: Harness, time_server: McpServer) -> None:
    async with connecting(time_server) as servers:
        toolset = Toolset([], sources=[servers])
        async with harness.replica(ScriptedProvider([call("a"), answer()]), toolset=toolset) as replica:
            turn = await harness.finish(replica, await harness.ask(tools=servers.tools().values()))
    result = results_of(turn)["a"]
    assert not result.is_error
    assert json.loads(result.text)["timezone"] == "Europe/Berlin"
    assert (turn.status, texts_of(turn)) == ("complete", ["It is late."])


async def test_a_server_killed_in_the_middle_of_a_call_is_an_outcome_and_is_there_for_the_next(
    harness: Harness,
) -> None:
    async with connecting(TIME) as servers:
        source = Announcing(servers)
        provider = ScriptedProvider([call("a"), call("b"), answer()])
        async with harness.replica(provider, toolset=Toolset([], sources=[source])) as replica:
            asked = await harness.ask(tools=servers.tools().values())
            process = process_of(TIME)
            process.suspend()
            finishing = asyncio.create_task(harness.finish(replica, asked))
            await source.called.wait()
            process.kill()
            turn = await finishing
    results = results_of(turn)
    assert results["a"].is_error
    assert results["a"].text == (
        "The MCP server time went away in the middle of the call. The effects of the call are unknown."
    )
    assert json.loads(results["b"].text)["timezone"] == "Europe/Berlin"
    assert turn.status == "complete"


async def test_a_call_that_may_be_made_twice_survives_the_death_of_the_server() -> None:
    async with connecting(replace(TIME, trusted=True)) as servers:
        source = Announcing(servers)
        process = process_of(TIME)
        process.suspend()
        calling = asyncio.create_task(Toolset([], sources=[source]).run(NOW, BERLIN, context_with()))
        await source.called.wait()
        process.kill()
        outcome = await calling
    assert json.loads(outcome.text)["timezone"] == "Europe/Berlin"
    assert outcome.notes["retries"] == 1


@pytest.mark.parametrize(
    "options",
    [pytest.param((), id="http"), pytest.param(("--old",), id="http with sessions", marks=pytest.mark.full)],
)
async def test_a_server_killed_over_http_is_an_outcome_and_is_found_when_it_is_back(options: tuple[str, ...]) -> None:
    port, context = free_port(), context_with()
    async with time_over_http(port, *options) as process, connecting(at(port)) as servers:
        tool = servers.tools()[NOW]
        process.suspend()
        called = asyncio.create_task(tool(context, BERLIN))
        await asyncio.sleep(0)
        process.kill()
        with pytest.raises(ToolUnavailable, match="in the middle of the call"):
            await called
        with pytest.raises(ToolUnavailable, match="cannot be reached now"):
            await tool(context, BERLIN)
        async with time_over_http(port, *options):
            await servers.changes.until(lambda: "time" in servers.connected)
            assert "Europe/Berlin" in (await tool(context, BERLIN)).text


async def test_a_session_unknown_to_the_server_is_replaced_by_a_new_one() -> None:
    port, context = free_port(), context_with()
    async with time_over_http(port, "--old") as process, connecting(at(port)) as servers:
        tool = servers.tools()[NOW]
        process.kill()
        async with time_over_http(port, "--old"):
            with pytest.raises(ToolUnavailable):
                await tool(context, BERLIN)
            assert "Europe/Berlin" in (await tool(context, BERLIN)).text


# --- connections -----------------------------------------------------------------------------------------------------


async def test_a_server_that_is_down_delays_no_start_and_is_connected_later() -> None:
    port = free_port()
    late, gone = replace(at(port), name="late"), McpServer("gone", command="/no/such/program")
    async with connecting(late, gone, TIME) as servers:
        assert servers.connected == {"time"}
        async with time_over_http(port):
            await servers.changes.until(lambda: "late" in servers.connected)
            assert {"late__get_current_time", NOW} <= servers.tools().keys()


async def test_tools_stay_listed_while_their_server_is_away() -> None:
    async with connecting(TIME) as servers:
        assert _gauge("time") == 1
        process_of(TIME).kill()
        await servers.changes.until(lambda: not servers.connected)
        assert sorted(servers.tools()) == ["time__convert_time", NOW]
        assert _gauge("time") == 0
        await servers.changes.until(lambda: "time" in servers.connected)
        assert _gauge("time") == 1
    assert _gauge("time") == 0


def _gauge(server: str) -> float | None:
    return REGISTRY.get_sample_value("turnstream_mcp_connected", {"server": server})


async def test_a_silent_server_is_not_awaited() -> None:
    mute = McpServer("mute", command=sys.executable, args=("-c", "import sys; sys.stdin.read()"))
    async with connecting(mute, connect_timeout=0.01) as servers:
        assert not servers.tools()
        process = process_of(mute)
    assert not process.is_running()


@pytest.mark.full
async def test_a_server_that_hangs_is_noticed_by_the_first_call_that_was_given_up() -> None:
    async with connecting(TIME, answer_timeout=0.1) as servers:
        tool, context = servers.tools()[NOW], context_with()
        stuck = process_of(TIME)
        stuck.suspend()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tool(context, BERLIN), timeout=0.01)
        await servers.changes.until(lambda: not servers.connected)
        await servers.changes.until(lambda: "time" in servers.connected)
        assert "Europe/Berlin" in (await tool(context, BERLIN)).text
        assert not stuck.is_running()


async def test_a_server_that_hangs_does_not_keep_us_from_ending() -> None:
    port = free_port()
    async with time_over_http(port, "--old") as process:
        async with connecting(at(port)) as servers:
            assert servers.connected
            process.suspend()
        assert not servers.connected


@pytest.mark.parametrize("server", BOTH_PACES)
async def test_a_new_tool_is_listed_when_the_server_notifies_it(server: McpServer) -> None:
    async with connecting(server) as servers:
        assert "paces__grown" not in servers.tools()
        await servers.tools()["paces__grow"](context_with(), "{}")
        await servers.changes.until(lambda: "paces__grown" in servers.tools())


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells of the end of a process of others")
def test_a_server_over_stdio_ends_with_us_even_when_we_are_killed() -> None:
    program = """
import asyncio
from tests.extensions.mcp.mcp_servers import TIME, process_of
from tests.extensions.mcp.test_mcp import connecting
async def main():
    async with connecting(TIME):
        print(process_of(TIME).pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as us:
        assert us.stdout is not None
        ended = os.pidfd_open(int(next(line for line in us.stdout if line.strip().isdigit())))
        us.kill()
    try:
        assert select.select([ended], [], [], 30)[0]
    finally:
        os.close(ended)


# --- calls -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=BOTH_PACES)
async def paces(request: pytest.FixtureRequest) -> AsyncIterator[McpServers]:
    async with connecting(request.param) as servers:
        yield servers


async def test_progress_is_shown_to_clients(paces: McpServers) -> None:
    shown: list[str] = []
    outcome = await paces.tools()["paces__walk"](context_with(shown), '{"steps": 2}')
    assert (outcome.text, shown) == ("arrived", ["step 1", "step 2", "2 of 2"])


async def test_a_call_that_is_cancelled_is_cancelled_at_the_server(paces: McpServers) -> None:
    begun = asyncio.Event()
    hanging = asyncio.create_task(paces.tools()["paces__hang"](context_with(begun=begun), "{}"))
    await begun.wait()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    outcome = await paces.tools()[tool_name("paces__", "was.abandoned")](context_with(), "{}")
    assert outcome.text == "yes"


async def test_calls_of_one_server_run_side_by_side(paces: McpServers) -> None:
    begun = asyncio.Event()
    hanging = asyncio.create_task(paces.tools()["paces__hang"](context_with(begun=begun), "{}"))
    await begun.wait()
    assert (await paces.tools()["paces__walk"](context_with(), '{"steps": 1}')).text == "arrived"
    assert not hanging.done()
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)


async def test_an_image_is_a_file_and_data_has_the_form_of_the_policy() -> None:
    server = replace(PACES, policies={"measure": Policy(results="text")})
    async with connecting(server) as servers:
        shown = await servers.tools()["paces__show"](context_with(), "{}")
        measured = await servers.tools()["paces__measure"](context_with(), "{}")
    assert shown == Outcome("", more=(File(PIXEL, "image/png"),))
    assert measured.text == "width: 3"


async def test_the_servers_error_for_a_wrong_call_reaches_the_model() -> None:
    async with connecting(TIME) as servers:
        outcome = await servers.tools()[NOW](context_with(), '{"timezone": "Europe/Nowhere"}')
        assert outcome.is_error
        assert "No time zone found with key Europe/Nowhere" in outcome.text
        gone = replace(servers.tools()[NOW], name="no_such_tool")  # type: ignore[type-var]
        with pytest.raises(ToolError, match="Unknown tool: no_such_tool"):
            await gone(context_with(), "{}")
        assert servers.connected


# --- the examples of docs/mcp.md ------------------------------------------------------------------------------------


def _declared(number: int, path: Path) -> McpServer:
    section = Path(ROOT, "docs/mcp.md").read_text(encoding="utf-8")
    example = re.findall(r"^```toml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[number]
    path.write_text(example.replace(".venv/bin/python", sys.executable), encoding="utf-8")
    (server,) = declared_servers(path, {"WIKI_TOKEN": "secret"})
    return server


async def test_the_example_of_a_process_works(tmp_path: Path) -> None:
    section = Path(ROOT, "docs/mcp.md").read_text(encoding="utf-8")
    (tmp_path / "clock.py").write_text(section.split("```python\n")[1].split("```")[0], encoding="utf-8")
    declared = replace(_declared(0, tmp_path / "tools.toml"), cwd=str(tmp_path))
    async with connecting(declared) as servers:
        tools = servers.tools()
        assert {name: tool.policy.timeout for name, tool in tools.items()} == {"clock__now": 5}
        assert all(tool.spec.read_only for tool in tools.values())
        assert re.search(r"\d\d:\d\d", (await tools["clock__now"](context_with(), "{}")).text)


def test_the_example_of_an_address_is_one(tmp_path: Path) -> None:
    server = _declared(1, tmp_path / "tools.toml")
    assert server.headers == {"authorization": "Bearer secret"}
    assert (server.prefix, server.tools, server.policy.timeout) == ("wiki", ("search", "read_page"), 10)


# --- how tools are listed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "read_only", "retry_safe"),
    [
        (PACES, False, False),
        (replace(PACES, trusted=True), True, True),
        (replace(PACES, read_only=frozenset({"walk"})), True, False),
        (replace(PACES, read_only=frozenset({"run"})), False, False),
    ],
    ids=["unknown", "trusted", "declared", "another declared"],
)
def test_a_server_is_believed_only_where_it_is_trusted(server: McpServer, read_only: bool, retry_safe: bool) -> None:
    hints = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True)
    spec = tool_of(
        server, types.Tool(name="walk", input_schema={"type": "object"}, annotations=hints), _never, SchemaRoom()
    ).spec
    assert (spec.read_only, spec.retry_safe) == (read_only, retry_safe)


async def _never(tool: McpTool, arguments: object, progress: object, context: object) -> CallToolResult:
    raise AssertionError


async def test_only_the_tools_that_are_declared_are_offered_with_the_policies_declared_for_them() -> None:
    slow = Policy(timeout=99)
    server = replace(PACES, prefix="p", tools=("walk", "hang", "fly"), policies={"hang": slow})
    async with connecting(server) as servers:
        tools: dict[str, Tool] = dict(servers.tools())
    assert {name: tool.policy for name, tool in tools.items()} == {"p__walk": Policy(), "p__hang": slow}
    assert tools["p__walk"].spec.description == "Walk, and tell of every step."
    assert json.loads(tools["p__walk"].spec.input_schema)["properties"]["steps"]["type"] == "integer"


def test_every_name_becomes_valid_and_stays_unique() -> None:
    names = ["read_file", "read.file", "read/file", "x" * 100, "x" * 101, "größe", ""]
    ours = [tool_name("files__", name) for name in names]
    assert ours[0] == "files__read_file"
    assert all(len(name) <= 64 and name.isascii() and name.replace("-", "_").isidentifier() for name in ours)
    assert len(set(ours)) == len(names)
    assert ours == [tool_name("files__", name) for name in names]


def test_two_servers_with_the_same_prefix_are_refused() -> None:
    with pytest.raises(ValueError, match="would begin with time__"):
        McpServers([TIME, replace(PACES, prefix="time")])


def test_every_part_of_a_result_keeps_its_place() -> None:
    uri = "file:///notes"
    result = CallToolResult(
        content=[
            types.TextContent(type="text", text="Two notes:"),
            types.EmbeddedResource(type="resource", resource=types.TextResourceContents(uri=uri, text="buy tea")),
            types.EmbeddedResource(type="resource", resource=types.BlobResourceContents(uri=uri, blob="AAECAw==")),
            types.ResourceLink(type="resource_link", uri=uri, name="notes", mime_type="text/plain", size=1234),
            types.ImageContent(type="image", data=encodebytes(PIXEL).decode(), mime_type="image/jpeg"),
            types.ImageContent(type="image", data="not base64!", mime_type="image/png"),
            types.AudioContent(type="audio", data="AAEC", mime_type="audio/wav"),
        ]
    )
    outcome = outcome_of(result, "json")
    assert outcome == Outcome(
        "Two notes:\n[resource file:///notes]\nbuy tea",
        more=(
            File(b"\0\1\2\3", "resource file:///notes: unknown type"),
            "[link to file:///notes: notes, text/plain, 1,234 bytes]",
            File(PIXEL, "image/jpeg"),
            "[image/png: its content is not base64]",
            File(b"\0\1\2", "audio/wav"),
        ),
    )
    assert fit(outcome, Sizes(1000, 1000), "toolu_1", []).more == (
        "[resource file:///notes: unknown type, 4 bytes: neither an image nor a PDF that can be shown]",
        "[link to file:///notes: notes, text/plain, 1,234 bytes]",
        File(PIXEL, "image/jpeg"),
        "[image/png: its content is not base64]",
        "[audio/wav, 3 bytes: neither an image nor a PDF that can be shown]",
    )


def test_data_replaces_only_texts() -> None:
    picture = types.ImageContent(type="image", data=b64encode(PIXEL).decode(), mime_type="image/png")
    words = types.TextContent(type="text", text='{"a": 1}')
    result = CallToolResult(content=[picture, words], structured_content={"a": 1})
    data = {"structuredContent": {"a": 1}}
    assert outcome_of(result, "text") == Outcome("a: 1", more=(File(PIXEL, "image/png"),), data=data)
    assert outcome_of(result, "json") == Outcome("", more=(File(PIXEL, "image/png"), '{"a": 1}'), data=data)


def test_clients_receive_structured_content_and_metadata_as_they_came() -> None:
    text = types.TextContent(type="text", text="7 rows")
    result = CallToolResult(content=[text], structured_content={"rows": [1]}, _meta={"ui/resource": "ui://table"})
    outcome = outcome_of(result, "json")
    assert (outcome.text, outcome.data) == (
        "7 rows",
        {"structuredContent": {"rows": [1]}, "_meta": {"ui/resource": "ui://table"}},
    )
    assert outcome_of(CallToolResult(content=[text]), "json").data is None


def test_a_result_without_text_states_success_or_failure() -> None:
    assert outcome_of(CallToolResult(content=[]), "json").text == "The call succeeded and returned nothing."
    failed = outcome_of(CallToolResult(content=[], is_error=True), "json")
    assert (failed.text, failed.kind) == ("The call failed; nothing was said of why.", "error")
    assert outcome_of(CallToolResult(content=[], structured_content={"a": [1]}), "json").text == '{"a":[1]}'
