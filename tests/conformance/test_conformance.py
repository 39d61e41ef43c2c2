"""The conformance kit, run against this project's clients and server."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import httpx2
import pytest
from click.testing import CliRunner

from tests.support.http_server import serving
from tests.support.programs import path_of
from turnstream.cli import commands
from turnstream.extensions.agents.agent import Agent
from turnstream.extensions.agents.tool import agent_tool
from turnstream.extensions.demo.provider import DemoProvider
from turnstream.llm.models.catalog import ProviderModels
from turnstream.tools.tool import Tool, ToolContext, tool
from turnstream.tools.toolset import Toolset
from turnstream_client.assembler import Assembler
from turnstream_client.errors import RequestRejected
from turnstream_client.http import AsyncClient
from turnstream_conformance import server as servers
from turnstream_conformance.client import (
    Asked,
    ScriptedServer,
    Session,
    StreamBody,
    command,
    examine,
    examine_jitter,
    scripted_server,
    visitor,
)
from turnstream_conformance.origin import Request, Response, origin
from turnstream_conformance.report import Failed, Report
from turnstream_conformance.scenarios import SCENARIOS, Stream

ROOT = Path(__file__).parents[2]
PATIENCE = 50  # seconds; enough on a machine that is busy with other tests, because the longest scenario takes seven


async def python(url: str, session: Session) -> None:
    client, state = AsyncClient(url, "secret"), Assembler()
    chat, turn = str(session.chat), str(session.turn)
    try:
        if session.scenario.posts is not None:
            state = Assembler.of((await client.post_turn(chat, "When is high tide?"))["assistant_turn"])
        async with aclosing(client.follow(chat, turn).events()) as events:
            async for event in events:
                state.apply(event.name, event.data)
        if state.end is None:
            state = await client.answer(chat, turn)
    except RequestRejected as error:
        if error.status == 400:
            state = await client.answer(chat, turn)
    finally:
        await client.aclose()
    session.reported.set_result({"status": (state.end or "").removeprefix("turn_"), "blocks": state.blocks})


# A naive client: it stores an id before its event is complete, ignores resets and refusals, and retries without a
# pause.
NAIVE = """
import httpx2, json, sys
url, chat, turn = sys.argv[1:]
blocks, status, cursor = [], "running", None
while status == "running":
    headers, rest = {"Last-Event-ID": cursor} if cursor else {}, ""
    try:
        with httpx2.stream("GET", f"{url}/api/chats/{chat}/turns/{turn}/stream", headers=headers) as response:
            if response.status_code == 204:
                break
            for text in response.iter_text():
                *lines, rest = (rest + text).split("\\n")
                for name, _, value in (line.partition(": ") for line in lines):
                    if name == "id":
                        cursor = value
                    elif name == "event":
                        event = value
                    elif name == "data" and event.startswith("block_"):
                        data = json.loads(value)
                        if event == "block_start":
                            blocks.append({**data, "text": ""})
                        else:
                            data["text"] = blocks[data["index"]]["text"] + data.get("text", "")
                            blocks[data["index"]].update(data)
                    elif name == "data" and event in {"turn_complete", "turn_cancelled", "turn_error"}:
                        status = event.removeprefix("turn_")
    except httpx2.TransportError:
        pass
print(json.dumps({"status": status, "blocks": blocks}))
"""


def held(report: Report) -> None:
    assert report.exit_code == 0, report.as_text()
    assert {result.status for result in report.results} == {"held"}


async def test_the_client_in_python_holds_every_duty_of_a_client() -> None:
    async with scripted_server(0, PATIENCE) as (url, server):
        held(await examine(url, server, python, "turnstream-client"))


@pytest.mark.needs("Node")
async def test_the_client_of_the_page_holds_every_duty_of_a_client() -> None:
    script = ROOT / "tests/javascript/conformance.mjs"
    async with scripted_server(0, PATIENCE) as (url, server):
        node = await asyncio.create_subprocess_exec(path_of("Node"), str(script), url)
        report = await examine(url, server, visitor, "of its own")
        assert await node.wait() == 0
    held(report)
    page = (ROOT / "app/turnstream_conformance/README.md").read_text(encoding="utf-8")
    assert [line for line in report.as_text().splitlines() if line[:60].rstrip() not in page] == []


async def test_a_client_with_the_usual_mistakes_is_found_out(tmp_path: Path) -> None:
    script = tmp_path / "naive.py"
    script.write_text(NAIVE, encoding="utf-8")
    chosen = {
        "a turn is assembled": "",
        "cut between an id and its event": "After the event 1-9-0 the client came back with the cursor 1-10-0",
        "a reset, in the midst of a block": "In what the client assembled",
        "503 and 502 again and again": "each is to be longer than the one before",
        "streams that end at once": "each is to be longer than the one before",
        "403": "2 requests for the stream, not 1",
        "a POST that is refused": "needs --post",
    }
    async with scripted_server(0, 20) as (url, server):
        server.sessions = {promise: server.sessions[promise] for promise in chosen}
        customer = command(f"{sys.executable} {script} {{url}} {{chat}} {{turn}}", None)
        report = await examine(url, server, customer, "naive")
    texts = {result.promise: result.text for result in report.results}
    chosen["pauses have a random part"] = "needs two scenarios"
    assert [promise for promise, text in chosen.items() if text not in texts[promise]] == [], report.as_text()
    assert (report.exit_code, report.as_text().splitlines()[-1]) == (1, "1 held, 5 failed, 2 skipped")
    suite = ET.fromstring(report.as_junit())
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("8", "5", "2")
    assert [each["promise"] for each in json.loads(report.as_json())["results"]] == list(chosen)


async def test_pauses_without_a_random_part_are_found_out() -> None:
    def session(*pauses: float) -> Session:
        played = ScriptedServer(PATIENCE).sessions["429 again and again"]
        for number, answer in enumerate(played.scenario.answers):
            at = sum(pauses[:number])
            played.streams.append(Asked(Request("GET", "/", {}, {}, b"", at), answer, None, at))
        return played

    same = (0.4, 0.8, 1.6, 3.2)
    assert await examine_jitter([session(*same), session(0.4, 0.83, 1.6, 2.1)]) == "first pauses of 0.4, 0.4 s"
    with pytest.raises(Failed, match=r"In 2 scenarios the last pauses were 3\.2, 3\.3 s"):
        await examine_jitter([session(*same), session(0.41, 0.84, 1.63, 3.3)])


async def test_each_cut_of_a_scenario_lies_in_its_stream() -> None:
    for session in ScriptedServer(PATIENCE).sessions.values():
        rest = list(session.events)
        for answer in session.scenario.answers:
            if isinstance(answer, Stream):
                body = StreamBody(rest, answer, session.scenario.retry)
                assert body.held_back or answer.cut is None
                ids = [event.id for event in rest]
                rest = rest[ids.index(body.last_id) + 1 :] if body.last_id else rest


def test_the_numbers_of_scenarios_are_promises_of_the_protocol() -> None:
    protocol = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    assert [each.rule for each in SCENARIOS if f"**{each.rule}.**" not in protocol] == []


def test_contradictory_options_are_a_usage_error() -> None:
    result = CliRunner().invoke(commands, ["conformance", "client", "--post", "curl {url}"])
    assert (result.exit_code, "--post needs a COMMAND too" in result.output) == (2, True)


# --- servers ---------------------------------------------------------------------------------------------------------


SCOUT = agent_tool(Agent("scout", "Scouts.", "Scout."))
CALL = "a call in the background has one result, whatever the cuts"


@tool(background=True)
async def dig(context: ToolContext) -> str:
    """Dig."""
    for depth in range(5):
        context.preliminary(f"{depth} m")
        context.progress(f"at {depth} m")
        await asyncio.sleep(0.5)
    return "a hole"


@tool(background=True, approval="always")
async def dive(depth: int) -> str:
    """Dive."""
    return f"{depth} m"


@asynccontextmanager
async def demo_server(database_url: str, *tools: Tool) -> AsyncIterator[tuple[str, str]]:
    """Runs a demo server, and yields its URL and a token."""
    offers = [ProviderModels(DemoProvider(0.005), ["demo"])]
    async with serving(database_url, Toolset(tools), offers=offers, model="demo", heartbeat=0.5) as server:
        yield server.url, await server.token("ada")


async def test_our_server_keeps_all_promises_that_are_visible_from_outside(database_url: str) -> None:
    async with demo_server(database_url, SCOUT) as (url, token):
        report = await servers.examine(url, token, servers.MESSAGE, 60)
        async with httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}) as client:
            assert (await client.get("/api/chats")).json()["chats"] == []
    held(report)
    page = (ROOT / "app/turnstream_conformance/README.md").read_text(encoding="utf-8")
    assert [result.promise for result in report.results if result.promise not in page] == []


async def _examined(database_url: str, *tools: Tool, background: str | None = None) -> tuple[str, str]:
    """Examines a server. Returns the status and the text of the promise about background calls."""
    async with demo_server(database_url, *tools) as (url, token):
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as client:
            checks = servers.ServerChecks(client, servers.MESSAGE, PATIENCE, True, background).checks()
            (check,) = [check for check in checks if check.promise == CALL]
            result = await check.run(3 * PATIENCE)
    return result.status, result.text


@pytest.mark.parametrize(
    ("background", "kind"), [(None, "tool"), ('/call scout {"task": "/long 400"}', "child")], ids=["chosen", "named"]
)
async def test_a_call_in_the_background_is_chosen_or_named(
    database_url: str, background: str | None, kind: str
) -> None:
    status, text = await _examined(database_url, dive, dig, SCOUT, background=background)
    assert (status, text.partition(",")[0]) == ("held", f"of the kind {kind}"), text


async def test_without_a_call_in_the_background_its_promise_is_skipped(database_url: str) -> None:
    assert await _examined(database_url, dive) == (
        "skipped",
        "needs a tool in the background, or --background with a message that lets the model call one",
    )
    skipped = await _examined(database_url, dig, background="/say Nothing.")
    assert skipped == ("skipped", "the model called no tool in the background, or the call ended at once")


async def test_a_server_that_forgets_cursors_is_found_out(database_url: str) -> None:
    """A proxy in front of the server removes cursors and the headers of streams."""
    async with demo_server(database_url) as (url, token), httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:

        async def forgetful(request: Request, response: Response) -> None:
            kept = {name: request.headers[name] for name in _PASSED if name in request.headers}
            params = {name: value for name, value in request.query.items() if name != "cursor"}
            sent = client.stream(request.method, request.path, headers=kept, params=params, content=request.body)
            async with sent as answer:
                await response.start(answer.status_code, {"Content-Type": answer.headers.get("content-type", "")})
                async for chunk in answer.aiter_raw():
                    await response.send(chunk)
                await response.end()

        async with origin(forgetful) as forgetting:
            report = await servers.examine(forgetting, token, servers.MESSAGE, 25)
    failed = {result.rule for result in report.results if result.status == "failed"}
    assert failed >= {"S1", "S3", "S4", "S5", "S8", "S18", "T1", "T6"}, report.as_text()
    assert {result.rule for result in report.results if result.status == "held"} >= {"S11", "S16"}, report.as_text()


_PASSED = ("authorization", "accept", "content-type", "idempotency-key")
