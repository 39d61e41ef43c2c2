import asyncio

from app.stream.wakeup import Wakeup


async def _waiting(bell: Wakeup, count: int = 1) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(bell.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_a_ring_wakes_everyone_who_waits() -> None:
    bell = Wakeup()
    waiting = await _waiting(bell, 3)
    bell.notify()
    await asyncio.gather(*waiting)


async def test_a_ring_wakes_nobody_who_comes_later() -> None:
    bell = Wakeup()
    bell.notify()
    (late,) = await _waiting(bell)
    await asyncio.sleep(0)
    assert not late.done()
    bell.notify()
    await late


async def test_whoever_looks_before_waiting_never_misses_what_was_written() -> None:
    bell = Wakeup()
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
            bell.notify()
            if number % 7 == 0:
                await asyncio.sleep(0)
    assert seen == written


async def test_two_rings_in_a_row_are_one_wake_up_and_the_second_ring_is_not_lost_on_a_new_waiter() -> None:
    bell = Wakeup()
    (first,) = await _waiting(bell)
    bell.notify()
    bell.notify()
    await first
    (second,) = await _waiting(bell)
    assert not second.done()
    bell.notify()
    await second


async def test_a_waiter_that_was_cancelled_is_forgotten() -> None:
    bell = Wakeup()
    gone, stays = await _waiting(bell, 2)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert bell.has_waiters is True
    stays.cancel()
    await asyncio.gather(stays, return_exceptions=True)
    assert bell.has_waiters is False


async def test_a_waiter_that_is_cancelled_after_the_ring_harms_nobody() -> None:
    bell = Wakeup()
    gone, stays = await _waiting(bell, 2)
    bell.notify()
    gone.cancel()
    outcome, _ = await asyncio.gather(gone, stays, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    bell.notify()


async def test_a_waiter_may_be_cancelled_and_rung_for_in_the_same_moment() -> None:
    bell = Wakeup()
    gone, stays = await _waiting(bell, 2)
    gone.cancel()
    bell.notify()
    outcome, _ = await asyncio.gather(gone, stays, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    assert bell.has_waiters is False
