import asyncio

from app.stream.wakeup import Doorbell


async def _waiting(bell: Doorbell, count: int = 1) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(bell.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_a_ring_wakes_everyone_who_waits() -> None:
    bell = Doorbell()
    waiting = await _waiting(bell, 3)
    bell.ring()
    await asyncio.gather(*waiting)


async def test_a_ring_wakes_nobody_who_comes_later() -> None:
    bell = Doorbell()
    bell.ring()
    (late,) = await _waiting(bell)
    await asyncio.sleep(0)
    assert not late.done()
    bell.ring()
    await late


async def test_whoever_looks_before_waiting_never_misses_what_was_written() -> None:
    bell = Doorbell()
    written: list[int] = []
    seen: list[int] = []

    async def read() -> None:
        while len(seen) < 100:
            if len(seen) == len(written):
                await bell.wait()
            seen.extend(written[len(seen) :])

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(read())
        for number in range(100):
            written.append(number)
            bell.ring()
            if number % 7 == 0:
                await asyncio.sleep(0)
    assert seen == written


async def test_two_rings_in_a_row_are_one_wake_up_and_the_second_ring_is_not_lost_on_a_new_waiter() -> None:
    bell = Doorbell()
    (first,) = await _waiting(bell)
    bell.ring()
    bell.ring()
    await first
    (second,) = await _waiting(bell)
    assert not second.done()
    bell.ring()
    await second


async def test_a_waiter_that_was_cancelled_is_forgotten() -> None:
    bell = Doorbell()
    gone, stays = await _waiting(bell, 2)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert bell.awaited is True
    stays.cancel()
    await asyncio.gather(stays, return_exceptions=True)
    assert bell.awaited is False


async def test_a_waiter_that_is_cancelled_after_the_ring_harms_nobody() -> None:
    bell = Doorbell()
    gone, stays = await _waiting(bell, 2)
    bell.ring()
    gone.cancel()
    outcome, _ = await asyncio.gather(gone, stays, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    bell.ring()


async def test_a_waiter_may_be_cancelled_and_rung_for_in_the_same_moment() -> None:
    bell = Doorbell()
    gone, stays = await _waiting(bell, 2)
    gone.cancel()
    bell.ring()
    outcome, _ = await asyncio.gather(gone, stays, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    assert bell.awaited is False
