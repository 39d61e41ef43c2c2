"""Preliminary outputs of running tools: readers see them, rows keep the newest output of each call, and the result
replaces it.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.support.harness import TICK, Asked, Harness, Replica, results_of
from turnstream.api.events import frame
from turnstream.domain.blocks import PreliminaryOutput
from turnstream.domain.cursor import Cursor
from turnstream.engine import preliminary
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.runs.snapshots import Snapshots
from turnstream.stream.directory import Directory
from turnstream.stream.mirror import Mirror
from turnstream.stream.reader import TurnReader
from turnstream.tools.tool import ToolContext, ToolResult, tool, tools_of
from turnstream.tools.toolset import Toolset

FOUND = PreliminaryOutput(1, "toolu_1", "search", "2 of 4 are found.", {"rows": [1, 2]})


class Archive:
    def __init__(self) -> None:
        self.runs = 0
        self.more, self.go = asyncio.Event(), asyncio.Event()

    @tool(retry_safe=True)
    async def search(self, context: ToolContext) -> str:
        """Search for long."""
        self.runs += 1
        context.preliminary("1 of 4 is found.")
        context.preliminary(object())  # a mistake of the tool, which is logged
        context.preliminary(ToolResult("2 of 4 are found.", {"rows": [1, 2]}))
        await self.more.wait()
        context.preliminary({"found": 3})
        await self.go.wait()
        return "4 are found."


def provider() -> ScriptedProvider:
    return ScriptedProvider([message_of(tool_use("search", {}, "toolu_1")), message_of(text("Four."))])


async def ask(harness: Harness, archive: Archive, replica: Replica) -> Asked:
    asked = await harness.ask(tools=tools_of(archive))
    replica.worker.wake()
    return asked


async def stored(harness: Harness, asked: Asked, wanted: str) -> None:
    while [output.text for output in (await harness.turn(asked)).preliminary] != [wanted]:  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(TICK)


async def notices(harness: Harness, directory: Directory, asked: Asked) -> AsyncGenerator[dict[str, Any], None]:
    """Returns the preliminary outputs that a new reader gets, and the number of events before each output."""
    view, events = directory.view(await harness.turn(asked)), 0
    async for frames in TurnReader(directory, view, lambda: harness.turn(asked), Cursor(), frame).frames():
        for each in frames.split(b"\n\n")[:-1]:
            events += each.startswith(b"id:")
            if b"event: tool_output\n" in each:
                yield json.loads(each.partition(b"data: ")[2]) | {"after": events}


async def test_readers_see_each_output_and_later_readers_the_last_one(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preliminary, "_SHOWN", 0.0)
    archive = Archive()
    async with harness.replica(provider(), toolset=Toolset(tools_of(archive))) as replica:
        asked = await ask(harness, archive, replica)
        await stored(harness, asked, FOUND.text)
        assert (await harness.turn(asked)).preliminary == (FOUND,)
        reader = notices(harness, replica.directory, asked)
        first = await anext(reader)
        assert first["after"] > 0, "behind the events, so that a client knows the call"
        del first["after"]
        shown = {"tool_use_id": "toolu_1", "name": "search"}
        assert first == {**shown, "text": FOUND.text, "data": FOUND.data}
        archive.more.set()
        assert (await anext(reader)).items() >= {**shown, "text": '{"found":3}'}.items()
        await reader.aclose()
        archive.go.set()
        turn = await harness.finish(replica, asked)
    assert turn.preliminary == ()
    assert results_of(turn)["toolu_1"].text == "4 are found."


async def test_readers_on_another_replica_see_it_by_the_rows(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preliminary, "_STORED", 0.0)
    monkeypatch.setattr(preliminary, "_SHOWN", TICK)
    archive, elsewhere = Archive(), Directory()
    mirroring = asyncio.create_task(Mirror(Snapshots(harness.database), elsewhere, TICK).run())
    async with harness.replica(provider(), toolset=Toolset(tools_of(archive))) as replica:
        asked = await ask(harness, archive, replica)
        await stored(harness, asked, FOUND.text)
        reader = notices(harness, elsewhere, asked)
        assert (await anext(reader))["text"] == FOUND.text
        archive.more.set()
        assert (await anext(reader))["text"] == '{"found":3}'
        await reader.aclose()
        archive.go.set()
        await harness.finish(replica, asked)
    mirroring.cancel()
    await asyncio.wait({mirroring})


async def test_after_a_crash_the_last_state_is_there_until_the_call_has_its_result(harness: Harness) -> None:
    archive, pause = Archive(), Pause()
    async with harness.replica(provider(), toolset=Toolset(tools_of(archive)), address="here") as replica:
        asked = await ask(harness, archive, replica)
        await stored(harness, asked, FOUND.text)
        await replica.kill()
    assert (await harness.turn(asked)).preliminary == (FOUND,)
    archive.more.set()
    archive.go.set()
    second = ScriptedProvider([[pause, *message_of(text("Four."))]])
    async with harness.replica(second, toolset=Toolset(tools_of(archive)), address="here") as replica:
        replica.worker.wake()
        await pause.reached.wait()
        assert (await harness.turn(asked)).preliminary == ()
        pause.go.set()
        turn = await harness.finish(replica, asked)
    assert archive.runs == 2
    assert turn.status == "complete"


async def test_a_tool_that_is_stopped_leaves_nothing_behind(harness: Harness) -> None:
    archive = Archive()
    async with harness.replica(provider(), toolset=Toolset(tools_of(archive))) as replica:
        asked = await ask(harness, archive, replica)
        await stored(harness, asked, FOUND.text)
        await replica.cancel(asked)
        turn = await harness.finish(replica, asked)
    assert (turn.status, turn.preliminary) == ("cancelled", ())
