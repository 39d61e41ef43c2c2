"""The slots of model calls that wait for the start of their reply: how many calls enter at once, in which order, and
the release of each slot.
"""

import asyncio

from turnstream.engine.openings import Openings

NEVER = 3600.0


async def test_no_more_calls_are_opened_at_once_than_there_are_slots_and_the_first_comes_first() -> None:
    openings, entered = Openings(slots=2, longest=NEVER), list[int]()

    async def enter(number: int) -> None:
        leaves.append(await openings.enter())
        entered.append(number)

    leaves = [await openings.enter(), await openings.enter()]
    waiting = [asyncio.create_task(enter(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert entered == []
    for leave in leaves[:2]:
        leave()
        leave()  # a second call of `leave` releases no slot
    await asyncio.gather(*waiting[:2])
    assert entered == [0, 1]
    leaves[2]()
    await waiting[2]
    for leave in leaves:
        leave()


async def test_a_call_whose_provider_does_not_answer_frees_its_slot() -> None:
    openings = Openings(slots=1, longest=0.0)
    leave = await openings.enter()
    following = await openings.enter()  # after `longest` seconds, a call enters without a free slot
    leave()
    following()


async def test_a_call_that_is_cancelled_while_it_waits_takes_no_slot() -> None:
    openings = Openings(slots=1, longest=NEVER)
    leave = await openings.enter()
    waiting = asyncio.create_task(openings.enter())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    leave()
    (await openings.enter())()
