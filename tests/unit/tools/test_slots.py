"""Slots for tool calls: which owner gets a free slot next, and how many slots one owner may hold."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from turnstream.tools.running.slots import Slots


class _Calls:
    """Calls that hold their slots until the test ends them."""

    def __init__(self, slots: Slots) -> None:
        self.running: list[str] = []
        self._slots = slots
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def begin(self, *names: str) -> None:
        """Begins calls. The letters of a call's name are its owner."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._call(name))
        await self._settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self._tasks.pop(name)
        await self._settle()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait({self._tasks.pop(name)})
        await self._settle()

    async def _call(self, name: str) -> None:
        async with self._slots.slot(name.rstrip("0123456789")):
            self.running.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.running.remove(name)

    async def _settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_free_slot_goes_to_the_owner_with_the_fewest_calls() -> None:
    calls = _Calls(Slots(2))
    await calls.begin("ada1", "ada2", "ada3", "ada4", "bob1", "bob2")
    assert calls.running == ["ada1", "ada2"]
    await calls.end("ada1")
    assert calls.running == ["ada2", "bob1"]
    await calls.end("bob1")
    assert calls.running == ["ada2", "bob2"]
    await calls.end("ada2", "bob2")
    assert calls.running == ["ada3", "ada4"]
    await calls.end("ada3", "ada4")


@pytest.mark.parametrize(("most", "first", "second"), [(1, 1, 0), (2, 1, 1), (3, 2, 1), (8, 4, 2), (64, 32, 16)])
async def test_an_owner_leaves_as_many_slots_as_it_takes(most: int, first: int, second: int) -> None:
    calls = _Calls(Slots(most, reserved=True))
    await calls.begin(*(f"ada{number}" for number in range(most + 6)))
    assert len(calls.running) == first
    await calls.begin(*(f"bob{number}" for number in range(most + 6)))
    assert sum(name.startswith("bob") for name in calls.running) == second
    while calls.running:
        await calls.end(calls.running[0])
    assert not calls._slots._waiting
    assert not calls._slots._running
    assert calls._slots._free == most


async def test_a_call_that_waits_can_be_cancelled_also_when_it_is_just_given_the_place() -> None:
    slots = Slots(1)
    calls = _Calls(slots)
    await calls.begin("ada1", "bob1", "bob2")
    await calls.cancel("bob1")
    async with AsyncExitStack():
        calls._ends["ada1"].set()
        await calls._tasks.pop("ada1")  # bob2 has got the slot, but its task has not run since
        await calls.cancel("bob2")
    await calls.begin("cid1")
    assert calls.running == ["cid1"]
    await calls.end("cid1")
