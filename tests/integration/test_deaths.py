"""Turns that kill their process, and the other turns of that process: counted deaths, charged recoveries, and separate
runs.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from tests.support.harness import Asked, Harness, Replica
from turnstream.domain.turns import Limits
from turnstream.engine import worker as worker_module
from turnstream.kit.ids import new_id
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.database import Statement
from turnstream.storage.runs.queue import Queue
from turnstream.tools.tool import tool

HERE = "here:8000"
SET_DEATHS = Statement("UPDATE turns SET deaths = :deaths WHERE id = :turn RETURNING id")
GET_COUNTS = Statement(
    "SELECT deaths, recoveries FROM turns WHERE id = ANY(CAST(:turns AS uuid[])) ORDER BY created_at"
)


async def died(harness: Harness, *turns: UUID) -> list[tuple[int, int]]:
    """Returns the counts of deaths and recoveries of these turns, after a process died in which they were running."""
    replica = new_id()
    await harness.database.rows(
        Statement(
            """
            UPDATE turns SET status = 'running', attempt = attempt + 1, replica = :replica
            WHERE id = ANY(CAST(:turns AS uuid[])) RETURNING id
            """
        ),
        turns=turns,
        replica=replica,
    )
    assert sorted(await Queue(harness.database, new_id(), "elsewhere", 1).take_over([replica])) == sorted(turns)
    return [(row["deaths"], row["recoveries"]) for row in await harness.database.rows(GET_COUNTS, turns=turns)]


async def test_a_death_is_counted_for_all_turns_of_the_process_and_charged_to_one_that_was_alone(
    harness: Harness,
) -> None:
    turns = [(await harness.ask()).turn for _ in range(3)]
    assert await died(harness, *turns) == [(1, 0)] * 3
    assert await died(harness, turns[0]) == [(2, 1)]


async def test_a_death_after_a_claim_of_suspects_is_counted_for_them_and_after_the_next_claim_for_all(
    harness: Harness,
) -> None:
    turns = [(await harness.ask()).turn for _ in range(3)]
    await harness.database.row(SET_DEATHS, turn=turns[0], deaths=2)
    for claims, counts in ((1, [(3, 1), (0, 0), (0, 0)]), (2, [(4, 1), (1, 0), (1, 0)])):
        queue = Queue(harness.database, new_id(), "here", 1)
        await queue.renew_lease(60)
        taken = [await queue.take(2, suspects=suspects) for suspects in (1, 0)[:claims]]
        assert [claim.turns for claim in taken] == [turns[:1], turns[1:]][:claims]
        taken_turns = [turn for claim in taken for turn in claim.turns]
        assert sorted(await Queue(harness.database, new_id(), "there", 2).take_over([queue.replica])) == taken_turns
        rows = await harness.database.rows(GET_COUNTS, turns=turns)
        assert [(row["deaths"], row["recoveries"]) for row in rows] == counts


async def test_several_suspects_are_claimed_at_once_only_if_none_of_them_died_again(harness: Harness) -> None:
    queue, turns = Queue(harness.database, new_id(), "here", 1), [(await harness.ask()).turn for _ in range(6)]
    for turn, deaths in zip(turns, (3, 2, 3, 2, 2, 4), strict=True):
        await harness.database.row(SET_DEATHS, turn=turn, deaths=deaths)
    claims = [await queue.take(50, suspects=2) for _ in range(6)]
    expected = [[turns[1], turns[3]], [turns[4]], [turns[0]], [turns[2]], [turns[5]], []]
    assert [claim.turns for claim in claims] == expected


async def test_a_suspect_is_claimed_before_all_others_and_nothing_beside_it(harness: Harness) -> None:
    queue, turns = Queue(harness.database, new_id(), "here", 1), [(await harness.ask()).turn for _ in range(5)]
    for turn, deaths in zip(turns[2:], (3, 2, 1), strict=True):
        await harness.database.row(SET_DEATHS, turn=turn, deaths=deaths)
    for most in (None, 100):
        assert (await queue.take(50, most, suspects=0)).turns == [turns[0], turns[1], turns[4]]
        await queue.give_back(turns, every=True)
        claims = [await queue.take(50, most, suspects=1) for _ in range(3)]
        assert [(claim.turns, claim.deaths) for claim in claims] == [
            ([turns[3]], 2),
            ([turns[2]], 3),
            ([turns[0], turns[1], turns[4]], 0),
        ]
        await queue.give_back(turns, every=True)


def halted_at(pause: Pause) -> Reply:
    parts = list(message_of(text("Half ", "a sentence.")))
    return [*parts[:3], pause, *parts[3:]]


async def outlive(harness: Harness, bad: Asked, provider: ScriptedProvider, fatal: Pause, held: Pause) -> int:
    """Starts a new process each time the turn has killed one, until the turn ends. Returns how many processes died."""

    @tool(read_only=True)
    async def kill() -> str:
        """Exit."""
        fatal.reached.set()
        await asyncio.Event().wait()
        return ""

    for deaths in range(100):
        fatal.reached.clear()
        async with harness.replica(provider, [kill], address=HERE) as replica:
            watching = asyncio.create_task(harness.follow(replica, bad))
            dying = asyncio.create_task(fatal.reached.wait())
            await asyncio.wait({watching, dying}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                dying.cancel()
                held.go.set()  # lets the other turns finish
                return deaths
            await replica.store_open()
            await replica.kill()
            watching.cancel()
    raise AssertionError("it has no end")


def shorten_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_APART", 0.02)
    monkeypatch.setattr(worker_module, "_LONGEST_APART", 0.1)


@pytest.mark.parametrize("limits", [Limits(), Limits(recovery="retry")], ids=["continue", "retry"])
async def test_a_turn_that_ends_each_process_ends_no_other_turn(
    harness: Harness, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_isolation(monkeypatch)
    held, fatal = Pause(), Pause()

    def reply(request: ModelRequest) -> Reply:
        if "bad" in str(request.messages):
            return message_of(text("I try."), tool_use("kill", {}, "toolu_1"))
        return halted_at(held)

    provider = ScriptedProvider(reply)

    @tool(read_only=True)
    async def kill() -> str:
        """Exit."""
        return ""

    with capture_logs() as logged:
        calm = [await harness.ask("calm", limits=limits) for _ in range(3)]
        bad = await harness.ask("bad", tools=[kill], limits=limits)
        calm += [await harness.ask("calm", limits=limits) for _ in range(3)]
        deaths = await outlive(harness, bad, provider, fatal, held)
        async with harness.replica(provider, address=HERE) as replica:
            ended = await finished(harness, replica, calm)
    turn = await harness.turn(bad)
    assert (turn.status, turn.error and turn.error.type) == ("error", "interrupted")
    assert ended == ["complete"] * 6
    assert 2 < deaths <= 15, "two that all are counted for, and those that leave no doubt"
    assert "turns.isolated" in {line["event"] for line in logged}


async def test_ten_kills_from_outside_end_no_turn(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_isolation(monkeypatch)
    held = Pause()
    provider = ScriptedProvider(lambda _: halted_at(held))
    asked = [await harness.ask(limits=Limits(recovery="retry")) for _ in range(12)]
    with capture_logs():
        for _ in range(10):
            held.reached.clear()
            async with harness.replica(provider, address=HERE) as replica:
                await held.reached.wait()
                await replica.store_open()
                await replica.kill()
        held.go.set()
        async with harness.replica(provider, address=HERE) as replica:
            assert await finished(harness, replica, asked) == ["complete"] * 12


async def finished(harness: Harness, replica: Replica, asked: Sequence[Asked]) -> list[str]:
    return [(await harness.finish(replica, each)).status for each in asked]
