"""Tool completions, cancels, crashes, decisions and new messages come in any order. Every tool_use has exactly one
result, no effect happens twice or without approval, no message is lost, and the next request is legal.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random, SystemRandom

import pytest
from structlog.testing import capture_logs

from tests.integration.people_checks import UNFINISHED_CALLS, Checks
from tests.integration.people_fleet import Fleet
from tests.integration.people_model import Model
from tests.integration.people_talk import Talk
from tests.integration.people_tools import Workshop
from tests.support.harness import Harness
from tests.support.load import slowdown

CHATS = int(os.environ.get("PROPERTY_CHATS", "24"))
AT_ONCE = 8
ENOUGH = 24  # in so many chats each of these events usually happens; otherwise more chats follow
EVENTS = (
    "result",
    "approve",
    "approve with another input",
    "deny",
    "a tampered decision was refused",
    "a repeated decision was refused",
    "a late decision was refused",
    "an answer was sent twice with its key",
    "an approved call was run",
    "a result says: deny",
    "a result says: expired",
    "a result says: superseded",
    "an outcome is unknown",
    "a call was answered from memory",
    "a call was stopped or not run",
    "runs overtook each other",
    "an id was used again",
    "a ring was lost",
    "a replica crashed",
    "a replica left",
    "a turn was taken from who still ran it",
    "a reply was cut",
    "a round was voided",
    "a round was kept as it was",
    "a reader was told to forget",
    "a word was rejected",
    "a word was sent twice with its key",
    "enqueue on a busy branch",
    "branch on a busy branch",
    "interrupted",
    "steered one that was queued",
    "steered one that was running",
    "steered one that was waiting",
    "cancelled one that was queued",
    "cancelled one that was running",
    "asked again",
    "ended: complete",
    "ended: cancelled",
    "ended: error",
)


@pytest.mark.timeout(600)
async def test_whatever_people_say_and_replicas_suffer_every_call_has_one_result_and_the_next_request_is_legal(
    harness: Harness, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("PROPERTY_SEED") or SystemRandom().randrange(10**9))
    random = Random(seed)
    events: Counter[str] = Counter()
    try:
        with capture_logs():  # coloured tracebacks would take most of the time
            for number in range(0, 3 * CHATS, AT_ONCE):
                if number >= CHATS and (CHATS < ENOUGH or all(events[event] for event in EVENTS)):
                    break
                await _act(harness, Random(random.random()), events)
    except BaseException as error:
        error.add_note(f"PROPERTY_SEED={seed} repeats what is tried, not when")
        raise
    record_property(f"what people and replicas did (PROPERTY_SEED={seed})", dict(sorted(events.items())))
    if CHATS >= ENOUGH:
        assert not [event for event in EVENTS if not events[event]]


async def _act(harness: Harness, random: Random, events: Counter[str]) -> None:
    """Runs some chats at once, on replicas of their own."""
    workshop, model = Workshop(), Model(Random(random.random()), events)
    workshop.events = events
    async with AsyncExitStack() as stack:
        fleet = Fleet(harness, model, workshop, events, stack)
        await fleet.gather()
        async with asyncio.timeout(60 * slowdown()), asyncio.TaskGroup() as group:
            talks = [Talk(Random(random.random()), fleet, group) for _ in range(AT_ONCE)]
            faults = group.create_task(fleet.suffer(Random(random.random())))
            hands = group.create_task(workshop.let_go(Random(random.random())))
            await asyncio.gather(*(talk.live() for talk in talks))
            await asyncio.gather(*(talk.finish() for talk in talks))
            fleet.spared = True
            await faults
            hands.cancel()
        for talk in talks:
            try:
                await Checks(talk, model).assert_all()
            except AssertionError as error:
                error.add_note("\n".join(talk.story))
                raise
    assert model.problems == []
    assert await harness.database.rows(UNFINISHED_CALLS) == []
