"""Stops of calls that continue outside of the server: the server calls the tool with the handle once the row has the
stop.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from tests.support.harness import OWNER, Asked, Harness, Replica
from turnstream.domain.turns import Turn
from turnstream.engine.tool_gate import JobEnd
from turnstream.extensions.jobs.result_rows import JobResults
from turnstream.extensions.jobs.stop_rows import JobStops
from turnstream.extensions.jobs.tokens import digest_of_token
from turnstream.scripted import ScriptedProvider, message_of, text, tool_use
from turnstream.tools.tool import Detached, Outcome, ResultAddress, StoppedCall, ToolContext, tool, tools_of


@dataclass
class Farm:
    """A tool that renders outside of the server. `calls` has the successful stops, which come after so many
    `failures`.
    """

    url: str
    failures: int = 0
    hangs: bool = False
    calls: list[StoppedCall] = field(default_factory=list)
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    addresses: list[ResultAddress] = field(default_factory=list)

    async def stop(self, call: StoppedCall) -> None:
        self.tried.set()
        if self.hangs:
            await asyncio.Event().wait()
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the farm is away")
        self.calls.append(call)
        self.stopped.set()

    @tool(background=True, stopped=stop)
    async def render(self, context: ToolContext) -> str | Detached:
        """Render."""
        if context.handle is not None:
            await asyncio.Event().wait()
        self.addresses.append(await context.result_address())
        return Detached({"job": "r7"})

    @tool(background=True, stopped=stop)
    async def render_too_late(self, context: ToolContext) -> Detached:
        """Render for a job that is stopped meanwhile."""
        connection = await asyncpg.connect(self.url)
        await connection.execute("UPDATE jobs SET settled_at = now(), replica = NULL")
        await connection.close()
        return Detached({"job": "r8"})


@pytest.fixture
def farm(database_url: str) -> Farm:
    return Farm(database_url)


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


def provider(name: str = "render") -> ScriptedProvider:
    return ScriptedProvider([message_of(tool_use(name, {}, "a")), message_of(text("There."))])


async def detached(harness: Harness, replica: Replica, farm: Farm) -> tuple[Asked, Turn]:
    asked = await harness.ask(tools=tools_of(farm))
    replica.worker.wake()
    turn = await harness.turn(asked)
    while [job.state for job in turn.jobs] != ["detached"]:  # rows send no event
        await asyncio.sleep(0.01)
        turn = await harness.turn(asked)
    await replica.idle(asked)
    return asked, turn


WAYS = ("cancelled", "chat deleted", "stopped by its owner", "deadline")


async def stop_by(way: str, harness: Harness, replica: Replica, asked: Asked, rows: "asyncpg.Connection[Any]") -> None:
    if way == "cancelled":
        await replica.cancel(asked)
    elif way == "chat deleted":
        await rows.execute("DELETE FROM chats")
    elif way == "deadline":
        await rows.execute("UPDATE jobs SET deadline = now()")
        replica.jobs.receive("jobs")
    else:
        stopped = JobEnd(Outcome("stopped", kind="refused", notes={"stopped": True}))
        assert await JobStops(harness.database).stop(OWNER, asked.turn, "a", unrun=stopped, stopped=stopped)


@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_is_called_once_when_its_call_was_stopped(
    harness: Harness, farm: Farm, rows: "asyncpg.Connection[Any]", way: str
) -> None:
    async with harness.replica(provider(), tools_of(farm), listens=True) as replica:
        asked, turn = await detached(harness, replica, farm)
        (job,) = turn.jobs
        await stop_by(way, harness, replica, asked, rows)
        await farm.stopped.wait()
        while await rows.fetchval("SELECT count(*) FROM stopped_jobs"):  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.01)
    assert farm.calls == [StoppedCall(OWNER, asked.turn, "a", f"{asked.turn}:1:a", job.id, {"job": "r7"})]


async def test_a_call_that_has_ended_by_itself_is_not_stopped(
    harness: Harness, farm: Farm, rows: "asyncpg.Connection[Any]"
) -> None:
    async with harness.replica(provider(), tools_of(farm), listens=True) as replica:
        asked, turn = await detached(harness, replica, farm)
        digest = digest_of_token(farm.addresses[0].token)
        await JobResults(harness.database).put(
            turn.jobs[0].id, digest, {"outcome": Outcome("There."), "from_elsewhere": True}
        )
        await harness.finish(replica, asked)
        await rows.execute("DELETE FROM chats")
        assert await rows.fetchval("SELECT count(*) FROM stopped_jobs") == 0
    assert farm.calls == []


async def test_a_job_of_an_owner_who_moves_is_not_stopped(
    harness: Harness, farm: Farm, rows: "asyncpg.Connection[Any]"
) -> None:
    async with harness.replica(provider(), tools_of(farm), listens=True) as replica:
        await detached(harness, replica, farm)
        await rows.execute("INSERT INTO moves (owner, cell, state) VALUES ($1, 'eu', 'gone')", OWNER)
        await rows.execute("DELETE FROM chats")
        assert await rows.fetchval("SELECT count(*) FROM stopped_jobs") == 0
    assert farm.calls == []


async def test_a_stop_that_fails_is_tried_again(harness: Harness, farm: Farm, rows: "asyncpg.Connection[Any]") -> None:
    farm.failures = 1
    async with harness.replica(provider(), tools_of(farm), listens=True) as replica:
        asked, _ = await detached(harness, replica, farm)
        await replica.cancel(asked)
        await farm.tried.wait()
        await rows.execute("UPDATE stopped_jobs SET due_at = now()")
        while not farm.calls:
            replica.jobs.receive("jobs")
            await asyncio.sleep(0.01)
    assert len(farm.calls) == 1


async def test_after_a_crash_another_replica_stops_the_work(
    harness: Harness, farm: Farm, rows: "asyncpg.Connection[Any]", database_url: str
) -> None:
    farm.hangs = True
    other = Farm(database_url)
    async with harness.replica(provider(), tools_of(farm), listens=True) as first, AsyncExitStack() as stack:
        asked, _ = await detached(harness, first, farm)
        await first.cancel(asked)
        await farm.tried.wait()
        await first.kill()
        second = await stack.enter_async_context(harness.replica(provider(), tools_of(other), listens=True))
        assert await rows.fetchval("SELECT due_at > now() FROM stopped_jobs"), "the first one may still do it"
        await rows.execute("UPDATE stopped_jobs SET due_at = now()")
        second.jobs.receive("jobs")
        await other.stopped.wait()
    assert (len(farm.calls), len(other.calls)) == (0, 1)


async def test_work_that_was_begun_for_a_stopped_job_is_stopped(harness: Harness, farm: Farm) -> None:
    async with harness.replica(provider("render_too_late"), tools_of(farm), listens=True) as replica:
        await harness.ask(tools=tools_of(farm))
        replica.worker.wake()
        await farm.stopped.wait()
    assert [call.handle for call in farm.calls] == [{"job": "r8"}]


async def test_a_stop_needs_a_background_tool_and_an_async_function() -> None:
    async def work() -> None:
        """Work."""

    async def stop(_call: StoppedCall) -> None: ...

    with pytest.raises(TypeError, match="work needs `background=True`"):
        tool(stopped=stop)(work)
    with pytest.raises(TypeError, match="must be an `async def`"):
        tool(background=True, stopped=print)(work)  # type: ignore[arg-type]
