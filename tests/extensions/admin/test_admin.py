"""What operators see and do for all owners and replicas, and the audit entries about their actions."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from pydantic import BaseModel

from tests.integration.api.test_openapi import LOOK, until
from tests.support.http_client import Client, Event, Said
from tests.support.http_server import Server, pausing, serving
from tests.support.openapi_document import Document
from tests.support.server_process import clean_environment
from turnstream.cli import commands
from turnstream.domain.errors import NotFound, PermanentError
from turnstream.domain.identity import SCOPES
from turnstream.extensions.admin import overview
from turnstream.extensions.admin.overview import Overview
from turnstream.libraries.audit_entries import newest_entries
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.database import Database, Statement, connect
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

PAGE = Path(__file__).parents[3] / "docs" / "admin.md"

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def operator(server: Server, document: Document) -> AsyncIterator[Client]:
    async with Client(server.url, document, await server.token("operator", "admin"), "operator") as client:
        yield client


async def now_when(operator: Client, fits: Callable[[Any], bool]) -> Any:
    """Returns the first state in the operator's stream for which `fits` is true."""
    async with operator.follow("/api/admin/stream") as events:
        async for event in events:
            if event.name == "now" and fits(event.data):
                return event.data
    raise AssertionError("the stream has ended")


def shown(now: Any, said: Said) -> Any:
    return next((turn for turn in now["turns"] if turn["id"] == said.assistant["id"]), None)


async def running(server: Server, client: Client, *more: Any) -> tuple[Said, Pause]:
    """Starts a turn whose provider pauses after the first word."""
    pause = Pause()
    said = await client.say(await client.chat(), model=server.scripts.model(pausing(pause, "One ", "two."), *more))
    await pause.reached.wait()
    return said, pause


async def audited(server: Server, said: Said) -> list[tuple[str, str | None, str]]:
    """Returns the audit entries about the turn. Each has its kind, its owner, and the turn's status at that time."""
    entries = await newest_entries(server.services.storage.database, None, "turn.", 1, 100)
    of_turn = [entry for entry in entries if entry.detail["turn"] == said.assistant["id"]]
    assert all(entry.actor is not None and entry.actor.startswith("token:") for entry in of_turn)
    return [(entry.kind, entry.owner, entry.detail["status"]) for entry in of_turn]


async def ended(client: Client, said: Said) -> Any:
    await client.events(said.stream_url)
    return await client.json("GET", said.url)


async def test_turns_of_all_owners_are_seen_with_their_reasons(server: Server, api: Client, operator: Client) -> None:
    said, pause = await running(server, api)
    model = server.scripts.model(message_of(tool_use("look", {}, "c")), message_of(text("Hi.")))
    asked = await api.say(await api.chat(), model=model, tools=[LOOK])
    async with api.follow(asked.stream_url) as events:
        assert "action_required" in [event.name async for event in until("action_required", events)]

    def has_both(now: Any) -> bool:
        return shown(now, said) is not None and (shown(now, asked) or {"status": ""})["status"] == "waiting"

    now = await now_when(operator, has_both)
    turn, waiting = shown(now, said), shown(now, asked)
    assert (turn["owner"], turn["status"], turn["stopping"]) == (api.owner, "running", False)
    assert waiting["reasons"][0].startswith("The turn waits for the result of look")
    (replica,) = [each for each in now["replicas"] if each["address"] == turn["replica"]]
    assert (replica["state"], replica["running"] >= 1, now["counts"]["waiting"] >= 1) == ("alive", True, True)
    pause.go.set()
    assert (await operator.json("GET", "/api/admin/overview")).keys() == {"now", "hour", "spend"}


async def test_a_turn_of_another_owner_is_stopped(server: Server, api: Client, operator: Client) -> None:
    said, _ = await running(server, api)
    act = f"/api/admin/turns/{said.assistant['id']}/stop"
    assert (await operator.json("POST", act))["owner"] == api.owner
    assert (await ended(api, said))["status"] == "cancelled"
    assert (await operator.json("POST", act))["status"] == "cancelled", "it is done already"
    assert await audited(server, said) == [("turn.stopped", api.owner, "running")]
    await operator.json("POST", f"/api/admin/turns/{said.user['id']}/stop", 404)


async def test_a_running_turn_is_put_back_into_the_queue(server: Server, api: Client, operator: Client) -> None:
    said, _ = await running(server, api, message_of(text("Two.")))
    act = f"/api/admin/turns/{said.assistant['id']}/requeue"
    assert (await operator.json("POST", act))["status"] == "queued"
    turn = await ended(api, said)
    assert (turn["status"], turn["attempt"] > 1, turn["blocks"][-1]["text"]) == ("complete", True, "Two.")
    refused = await operator.json("POST", act, 409)
    assert "is complete: only a running turn" in refused["detail"]
    assert await audited(server, said) == [("turn.requeued", api.owner, "running")]


async def test_the_last_hour_has_calls_failures_slow_tools_and_spend(database_url: str) -> None:
    @tool(read_only=True)
    async def dig() -> str:
        """Dig."""
        return "dug"

    async with serving(database_url, Toolset([dig])) as server, Client(server.url) as client:
        done = server.scripts.model(message_of(tool_use("dig", {}, "a")), message_of(text("Done.")))
        fails = server.scripts.model([PermanentError("authentication", "The key is wrong.")])
        for model in (done, fails):
            await client.ask(await client.chat(), model=model)
        seen = await client.json("GET", "/api/admin/overview")
        (replica,) = seen["now"]["replicas"]
        await client.json("POST", f"/api/admin/replicas/{replica['id']}/drain")
        (entry,) = await newest_entries(server.services.storage.database, None, "replica.", 1, 10)
        assert entry.actor == "owner:local", "without a token"
    hour, spend = seen["hour"], seen["spend"]
    assert sum(minute["calls"] for minute in hour["minutes"]) == 2
    assert sum(minute["failed"] for minute in hour["minutes"]) == 1
    assert any(minute["first_text_median"] is not None for minute in hour["minutes"])
    assert [(each["provider"], each["model"], each["calls"], each["cut_off"]) for each in hour["models"]] == [
        ("scripted", done, 2, 0)
    ]
    assert [(each["provider"], each["model"], each["type"], each["turns"]) for each in hour["failures"]] == [
        ("scripted", fails, "authentication", 1)
    ]
    assert [(each["name"], each["calls"], each["running"]) for each in hour["tools"]] == [("dig", 1, 0)]
    assert [(each["name"], each["calls"]) for each in spend["owners"]] == [("local", 2)]
    assert [(each["name"], each["calls"]) for each in spend["models"]] == [(done, 2)]


async def test_a_replica_drains_at_the_word_of_another_one_and_its_readers_read_on(database_url: str) -> None:
    async with serving(database_url, port=1) as leaving, serving(database_url, port=2) as staying:
        token = await staying.token("operator", *SCOPES)
        async with Client(leaving.url, token=token) as there, Client(staying.url, token=token) as here:
            pause, name = Pause(), "shared"
            leaving.scripts.offers.append(_offer(name, pausing(pause, "One ", "two.")))
            said = await there.say(await there.chat(), model=name)
            await pause.reached.wait()
            staying.scripts.offers.append(_offer(name, message_of(text("Two."))))
            now = await now_when(here, lambda now: shown(now, said) is not None)
            replicas = {each["id"]: each for each in now["replicas"]}
            (old,) = [id for id, each in replicas.items() if each["running"]]
            async with there.follow(said.stream_url) as events:
                drained = await here.json("POST", f"/api/admin/replicas/{old}/drain")
                assert (drained["state"], drained["address"]) == ("draining", replicas[old]["address"])
                received: list[Event] = [event async for event in events]
            assert received[-1].name == "turn_complete", "it went on where the turn runs now"
            now = await now_when(here, lambda now: not any(each["running"] for each in now["replicas"]))
            assert [each["state"] for each in now["replicas"] if each["id"] == old] == ["draining"]
            ready = [(await client.get("/readyz")).status_code for client in (there, here)]
            assert ready == [503, 200]
            await here.json("POST", f"/api/admin/replicas/{old}/drain")
            entries = await newest_entries(staying.services.storage.database, None, "replica.", 1, 10)
            assert [(entry.kind, entry.owner, entry.detail["replica"]) for entry in entries] == [
                ("replica.drained", None, old)
            ]


def _offer(name: str, reply: Any) -> Any:
    return ProviderModels(ScriptedProvider([reply]), [name])


async def test_the_overview_is_made_once_for_all_that_watch(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Statement] = []
    rows = Database.rows

    async def counted(database: Database, statement: Statement, **values: Any) -> Any:
        made.append(statement)
        return await rows(database, statement, **values)

    monkeypatch.setattr(Database, "rows", counted)
    async with connect(database_url, size=5) as database:
        watched = Overview(database, Models(), None)
        await watched.parts()
        alone = len(made)
        await asyncio.gather(*(watched.parts() for _ in range(50)))
        assert len(made) < 2 * alone, "at most the part that is made every two seconds, once more"


class Figures(BaseModel):
    number: int


async def test_a_part_that_takes_long_is_made_seldom_and_the_last_one_is_shown_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, made, go = 100.0, list[float](), asyncio.Event()

    async def make() -> Figures:
        nonlocal now
        made.append(now)
        await go.wait()
        now += 1
        return Figures(number=len(made))

    monkeypatch.setattr(overview, "monotonic", lambda: now)
    monkeypatch.setattr(overview, "_PATIENCE", 0)
    part = overview._Part(make, 2)
    first = [asyncio.create_task(part.get()) for _ in range(3)]
    await asyncio.sleep(0)
    go.set()
    assert set(await asyncio.gather(*first)) == {b'{"number":1}'}, "there is none to be shown meanwhile"
    go.clear()
    now = 119.0
    assert (await part.get(), made) == (b'{"number":1}', [100])
    now = 121.0
    assert [await part.get() for _ in range(2)] == [b'{"number":1}'] * 2
    assert made == [100, 121]
    now = 170.0
    late = asyncio.create_task(part.get())
    await asyncio.sleep(0)
    go.set()
    assert await late == b'{"number":2}', "the last one is too old to be shown"


async def called(*words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, commands, words)


async def test_the_commands_list_replicas_and_drain_one(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", clean_environment() | {"DATABASE_URL": database_url})
    (create,) = re.findall(r"^turnstream (tokens create .*)$", PAGE.read_text(), re.MULTILINE)
    token = (await called(*create.split())).stdout.split()[-1]
    async with serving(database_url) as server, Client(server.url, token=token) as client:
        assert (await client.get("/api/admin/overview")).status_code == 200
        listed = await called("replicas")
        head, row = (line.split("\t") for line in listed.stdout.splitlines())
        replica = dict(zip(head, row, strict=True))
        assert (replica["state"], replica["running"]) == ("alive", "0")
        drained = await called("drain", replica["replica"])
        assert drained.stdout == f"{replica['address']} drains.\n"
        async with asyncio.timeout(60):
            while (await client.get("/readyz")).status_code == 200:  # noqa: ASYNC110, no event reports the drain
                await asyncio.sleep(0.01)
        unknown = await called("drain", str(uuid4()))
        assert isinstance(unknown.exception, NotFound)
