"""The pool of connections lends each connection to one task at a time, serves tasks in their order, and loses no
connection.
"""

import asyncio
from contextlib import suppress
from time import monotonic

import pytest

from turnstream.storage.pool import Pool


class Connection:
    def __init__(self) -> None:
        self.closed = False
        self.in_transaction = False
        self._top_xact = None
        self._cancellations: set[object] = set()

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def terminate(self) -> None:
        self.closed = True

    async def close(self) -> None:
        self.closed = True


def pool_of(size: int) -> tuple[Pool, list[Connection]]:
    """Returns a pool, and the list of the connections that the pool opens."""
    opened: list[Connection] = []

    async def connect() -> Connection:
        await asyncio.sleep(0)
        opened.append(Connection())
        return opened[-1]

    return Pool(connect, size), opened


async def until_waiting(*tasks: asyncio.Task[Connection]) -> None:
    for _ in range(3 * len(tasks)):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


async def test_the_connection_used_last_is_lent_first_and_more_are_opened_only_when_needed() -> None:
    pool, opened = pool_of(3)
    first, second = await pool.acquire(), await pool.acquire()
    pool.release(second)
    pool.release(first)
    assert await pool.acquire() is first
    assert await pool.acquire() is second
    assert len(opened) == 2


async def test_tasks_that_wait_are_served_in_their_order() -> None:
    pool, _ = pool_of(1)
    connection = await pool.acquire()
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(3)]
    await until_waiting(*waiting)
    for task in waiting:
        pool.release(connection)
        assert await task is connection


@pytest.mark.parametrize("served", [False, True])
async def test_a_connection_is_not_lost_with_a_task_that_is_cancelled_while_it_waits(served: bool) -> None:
    pool, opened = pool_of(1)
    connection = await pool.acquire()
    task, next_task = (asyncio.create_task(pool.acquire()) for _ in range(2))
    await until_waiting(task, next_task)
    if served:
        pool.release(connection)
    task.cancel()
    if not served:
        pool.release(connection)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await next_task is connection
    assert len(opened) == 1


async def test_a_place_is_not_lost_with_a_connection_that_cannot_be_opened() -> None:
    failures = [OSError("away"), OSError("away")]

    async def connect() -> Connection:
        if failures:
            raise failures.pop()
        return Connection()

    pool = Pool(connect, 1)
    for _ in range(2):
        with suppress(OSError):
            await pool.acquire()
    assert await pool.acquire()


@pytest.mark.parametrize("left", ["closed", "in_transaction", "_top_xact"])
async def test_a_connection_that_cannot_be_used_again_makes_room_for_a_new_one(left: str) -> None:
    pool, opened = pool_of(1)
    connection = await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    await until_waiting(waiting)
    setattr(connection, left, True)
    pool.release(connection)
    other = await waiting
    assert other is opened[1]
    assert connection.closed
    pool.release(other)
    other.closed = True  # the connection is closed while it is idle
    assert await pool.acquire() is opened[2]


async def test_expired_connections_are_closed_the_lent_ones_when_they_come_back() -> None:
    pool, opened = pool_of(2)
    lent, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    pool.expire(monotonic())
    assert idle.closed
    assert not lent.closed
    assert await pool.acquire() is opened[2]
    pool.release(lent)
    assert lent.closed
    assert await pool.acquire() is opened[3]


async def test_connections_that_have_come_back_since_a_time_do_not_expire() -> None:
    pool, opened = pool_of(3)
    lent, silent, idle = await pool.acquire(), await pool.acquire(), await pool.acquire()
    pool.release(silent)
    since = monotonic()
    pool.release(idle)
    pool.expire(since)
    assert [lent.closed, silent.closed, idle.closed] == [False, True, False]
    pool.release(lent)
    assert lent.closed, "nothing came back from it"
    assert await pool.acquire() is idle
    await pool.acquire()
    await pool.acquire()
    assert len(opened) == 5


async def test_a_pool_is_closed_when_its_connections_have_come_back_and_lends_none_after_that() -> None:
    pool, opened = pool_of(3)
    lent, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    closing = asyncio.create_task(pool.close())
    await asyncio.sleep(0)
    assert not closing.done()
    with pytest.raises(Exception, match="closed"):
        await pool.acquire()
    pool.release(lent)
    await closing
    assert all(connection.closed for connection in opened)


async def test_connections_that_do_not_come_back_are_closed_when_the_pool_is_not_waited_for() -> None:
    pool, _ = pool_of(1)
    lent = await pool.acquire()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await pool.close()
    assert lent.closed
