import asyncio

from turnstream.stream.wakeup import Wakeup


async def _waiting(wakeup: Wakeup, count: int = 1) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(wakeup.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_a_notification_wakes_all_tasks_that_wait() -> None:
    wakeup = Wakeup()
    waiting = await _waiting(wakeup, 3)
    assert wakeup.waiters == 3
    wakeup.notify()
    await asyncio.gather(*waiting)


async def test_a_notification_wakes_no_task_that_waits_later() -> None:
    wakeup = Wakeup()
    wakeup.notify()
    (late,) = await _waiting(wakeup)
    await asyncio.sleep(0)
    assert not late.done()
    wakeup.notify()
    await late


async def test_a_reader_that_looks_before_it_waits_misses_nothing() -> None:
    wakeup = Wakeup()
    written: list[int] = []
    seen: list[int] = []

    async def read() -> None:
        while len(seen) < 100:
            if len(seen) == len(written):
                await wakeup.wait()
            seen.extend(written[len(seen) :])

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(read())
        for number in range(100):
            written.append(number)
            wakeup.notify()
            if number % 7 == 0:
                await asyncio.sleep(0)
    assert seen == written


async def test_two_notifications_wake_a_waiting_task_once_and_the_second_one_wakes_a_new_waiter() -> None:
    wakeup = Wakeup()
    (first,) = await _waiting(wakeup)
    wakeup.notify()
    wakeup.notify()
    await first
    (second,) = await _waiting(wakeup)
    assert not second.done()
    wakeup.notify()
    await second


async def test_a_waiter_that_was_cancelled_is_forgotten() -> None:
    wakeup = Wakeup()
    gone, stays = await _waiting(wakeup, 2)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert wakeup.has_waiters is True
    stays.cancel()
    await asyncio.gather(stays, return_exceptions=True)
    assert wakeup.has_waiters is False


async def test_a_waiter_that_is_cancelled_after_the_notification_does_no_harm() -> None:
    wakeup = Wakeup()
    gone, stays = await _waiting(wakeup, 2)
    wakeup.notify()
    gone.cancel()
    outcome, _ = await asyncio.gather(gone, stays, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    wakeup.notify()


async def test_a_waiter_may_be_cancelled_and_notified_at_the_same_moment() -> None:
    wakeup = Wakeup()
    gone, stays = await _waiting(wakeup, 2)
    gone.cancel()
    wakeup.notify()
    outcome, _ = await asyncio.gather(gone, stays, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError)
    assert wakeup.has_waiters is False
