"""Data of tools that clients receive and models do not."""

import json
from dataclasses import asdict

from tests.support.harness import Harness, results_of
from turnstream.api.codec import block_json
from turnstream.scripted import ScriptedProvider, message_of, text, tool_use
from turnstream.tools.running.fit import MOST_DATA
from turnstream.tools.tool import Outcome, Tool, ToolResult, tool

ROWS = {"rows": [{"city": "Brest", "high": 7.2}, {"city": "Saint-Malo", "high": 12.1}]}


@tool(read_only=True, memo=True)
async def tides() -> ToolResult:
    """The tides of today."""
    return ToolResult({"highest": "Saint-Malo"}, ROWS)


@tool()
async def draw() -> Outcome:
    """Draw a chart."""
    return Outcome("Drawn.", data=["x" * MOST_DATA])


@tool()
async def open_door() -> ToolResult:
    """Open a door."""
    return ToolResult("Opened.", data=object())


async def run(harness: Harness, *names: str) -> tuple[list[dict[str, object]], ScriptedProvider]:
    tools: list[Tool] = [tides, draw, open_door]
    calls = [message_of(tool_use(name, {}, f"toolu_{place}")) for place, name in enumerate(names)]
    provider = ScriptedProvider([*calls, message_of(text("Done."))])
    async with harness.replica(provider, tools) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=tools))
    return [block_json(block) for block in results_of(turn).values()], provider


async def test_data_is_stored_with_its_result_and_no_model_receives_it(harness: Harness) -> None:
    (result,), provider = await run(harness, "tides")
    assert (result["text"], result["data"]) == ('{"highest":"Saint-Malo"}', ROWS)
    sent = [block for request in provider.requests for message in request.messages for block in message.blocks]
    assert any(block.type == "tool_result" for block in sent)
    assert "Brest" not in json.dumps([asdict(block) | {"client_data": None} for block in sent])


async def test_a_result_that_is_used_again_has_its_data_too(harness: Harness) -> None:
    results, _ = await run(harness, "tides", "tides")
    assert [result["data"] for result in results] == [ROWS, ROWS]


async def test_data_that_is_too_long_or_no_json_is_left_out_and_a_note_gives_the_reason(harness: Harness) -> None:
    (long, odd), _ = await run(harness, "draw", "open_door")
    assert "data" not in long
    assert long["notes"]["data_left_out"] == "100,004 characters, of 100,000 that there may be"  # type: ignore[index]
    assert "data" not in odd
    assert "Unable to serialize" in odd["notes"]["data_left_out"]  # type: ignore[index]
