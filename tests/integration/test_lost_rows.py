"""A failover to an asynchronous standby loses the last seconds of a turn that goes on: it writes them again."""

import asyncio

import pytest

from app.llm.scripted import Pause, ScriptedProvider, message_of, text, thinking, tool_use
from app.tools.tool import tool
from tests.support.harness import Harness, rows_of, texts_of

# What was not replicated, as it is missing in the new primary.
LOSSES = {
    "the first block": ["DELETE FROM blocks WHERE turn_id = $1 AND index = 0"],
    "all blocks": ["DELETE FROM blocks WHERE turn_id = $1"],
    "the seal": ["UPDATE rounds SET sealed_by = NULL, sealed_at = NULL, stop_reason = NULL WHERE turn_id = $1"],
    "the whole round": [
        "DELETE FROM rounds WHERE turn_id = $1",
        "DELETE FROM blocks WHERE turn_id = $1",
        "DELETE FROM tool_calls WHERE turn_id = $1",
    ],
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("during", ["tool", "answer"])
async def test_rows_that_postgres_lost_are_written_again_before_the_turn_ends(
    harness: Harness, loss: list[str], during: str
) -> None:
    reached, go, pause = asyncio.Event(), asyncio.Event(), Pause()

    @tool()
    async def look() -> str:
        """Looks."""
        if during == "tool":
            reached.set()
            await go.wait()
        return "seen"

    answer = list(message_of(text("There it is.")))
    provider = ScriptedProvider(
        [
            message_of(thinking("Hm."), text("I look."), tool_use("look", {}, "call_1")),
            [*answer[:-1], pause, *answer[-1:]] if during == "answer" else answer,
        ]
    )
    asked = await harness.ask(tools=[look])
    async with harness.replica(provider, [look]) as replica, harness.locker() as locker:
        finishing = asyncio.create_task(harness.finish(replica, asked))
        await (reached.wait() if during == "tool" else pause.reached.wait())
        for statement in loss:
            await locker.connection.execute(statement, asked.turn)
        go.set()
        pause.go.set()
        turn = await finishing
    assert turn.status == "complete"
    assert [block.type for block in turn.blocks] == ["thinking", "text", "tool_use", "tool_result", "text"]
    assert texts_of(turn) == ["I look.", "There it is."]
    assert [round.stop_reason for round in turn.rounds] == ["tool_use", "end_turn"]
    assert len(await rows_of(harness.database, asked)) == 4
