"""The numbers of queued and of waiting turns over all replicas, as `/metrics` shows them."""

import math

import pytest
import structlog

from tests.integration.test_loop_people import decide, waits
from tests.support.harness import Harness
from tests.support.http_server import pausing
from turnstream.domain.asks import AskAnswer
from turnstream.libraries.turn_counts import TurnCounts
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.database import Statement
from turnstream.tools.tool import tool


@tool(approval="always")
async def draw() -> str:
    """Draw."""
    return "drawn"


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return "seen"


async def test_queued_and_waiting_turns_are_counted_and_the_count_is_kept_for_a_while(harness: Harness) -> None:
    counts, kept = TurnCounts(harness.database, keep=0), TurnCounts(harness.database, keep=math.inf)
    assert (await kept.open_turns() or ())[:2] == (0, 0)
    asked = await harness.ask(tools=[draw])
    assert (await counts.open_turns() or ())[:2] == (1, 0)
    async with harness.replica(ScriptedProvider([message_of(tool_use("draw", {}, "a"))]), [draw]) as replica:
        await waits(harness, replica, asked)
        counted = await counts.open_turns()
        assert counted is not None
        assert (counted.queued, counted.waiting, counted.replicas) == (0, 1, 1)
    assert (await kept.open_turns() or ())[:2] == (0, 0)


LIMIT = Statement(
    """
    UPDATE replicas SET configuration = json_build_object('running turns of an owner', CAST(:most AS text))
    RETURNING id
    """
)
AN_HOUR_AGO = Statement("UPDATE turns SET created_at = now() - interval '1 hour' RETURNING id")


@pytest.mark.parametrize(("most", "is_old"), [("1", False), ("2", True), ("", True)])
async def test_a_turn_whose_owner_has_as_many_running_as_may_be_is_not_the_oldest(
    harness: Harness, most: str, is_old: bool
) -> None:
    counts, pause = TurnCounts(harness.database, keep=0), Pause()
    async with harness.replica(ScriptedProvider([pausing(pause, "Hel", "lo.")])) as replica:
        await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        await harness.database.rows(LIMIT, most=most)
        await harness.ask()
        await harness.database.rows(AN_HOUR_AGO)
        counted = await counts.open_turns()
        assert counted is not None
        assert (counted.queued, counted.oldest > 3000) == (1, is_old)
        pause.go.set()


async def test_the_time_in_the_queue_restarts_after_an_answer_of_a_person(harness: Harness) -> None:
    asked = await harness.ask(tools=[draw])
    async with harness.replica(ScriptedProvider([message_of(tool_use("draw", {}, "a"))]), [draw]) as replica:
        await waits(harness, replica, asked)
    await harness.database.rows(AN_HOUR_AGO)
    await decide(harness, asked, a=AskAnswer("approve"))
    counted = await TurnCounts(harness.database, keep=0).open_turns()
    assert counted is not None
    assert (counted.queued, counted.oldest < 60) == (1, True)


async def test_a_database_that_does_not_answer_in_time_is_no_count(harness: Harness) -> None:
    lock = "LOCK TABLE turns IN ACCESS EXCLUSIVE MODE"
    async with harness.locker() as locker, locker.holding(lock):
        assert await TurnCounts(harness.database, timeout=0.05).open_turns() is None


async def test_the_call_of_the_model_that_answers_results_is_logged_from_its_beginning_to_its_end(
    harness: Harness,
) -> None:
    replies = [message_of(tool_use("look", {}, "a"), tool_use("look", {}, "b")), message_of(text("Done."))]
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        async with harness.replica(ScriptedProvider(replies), [look]) as replica:
            turn = await harness.finish(replica, await harness.ask(tools=[look]))
    begun, ended = (line for line in logs if line["event"].startswith("continuation."))
    place = {"turn": str(turn.id), "round": 2, "tools": 2}
    assert {"event": "continuation.started", **place}.items() <= begun.items()
    assert {"event": "continuation.ended", **place, "stop_reason": "end_turn"}.items() <= ended.items()
    assert ended["seconds"] >= 0
    assert ended["usage"] == turn.rounds[-1].usage
