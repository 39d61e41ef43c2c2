import asyncio

from app.stream.wakeup import Wakeup


async def _waiting(bell: Wakeup, count: int = 1) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(bell.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_a_notification_wakes_all_tasks_that_wait() -> None:
    bell = Wakeup()
    waiting = await _waiting(bell, 3)
    bell.notify()
    await asyncio.gather(*waiting)


async def test_a_notification_wakes_no_task_that_waits_later() -> None:
    bell = Wakeup()
    bell.notify()
    (late,) = await _waiting(bell)
    await asyncio.sleep(0)
    assert not late.done()
    bell.notify()
    await late


async def test_a_reader_that_looks_before_it_waits_misses_nothing() -> None:
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


async def test_two_notifications_wake_a_waiting_task_once_and_the_second_one_wakes_a_new_waiter() -> None:
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


async def test_a_waiter_that_is_cancelled_after_the_notification_does_no_harm() -> None:
    bell = Wakeup()
    gone, stays = await _waiting(bell, 2)
    bell.notify()
    gone.cancel()
    outcome, _ = await asyncio.gather(gone, stays, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    bell.notify()


async def test_a_waiter_may_be_cancelled_and_notified_at_the_same_moment() -> None:
    bell = Wakeup()
    gone, stays = await _waiting(bell, 2)
    gone.cancel()
    bell.notify()
    outcome, _ = await asyncio.gather(gone, stays, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    assert bell.has_waiters is False
