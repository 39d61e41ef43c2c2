"""The locks of the test harness count only waiting sessions, and no session that already holds its lock."""

import asyncio
import os
import signal

from tests.support.locks import Locker, connection_to

SHARED = "SELECT pg_advisory_xact_lock_shared(1)"


async def test_a_process_that_was_given_its_lock_and_has_not_run_since_does_not_wait(database_url: str) -> None:
    async with (
        connection_to(database_url) as holder,
        connection_to(database_url) as watcher,
        connection_to(database_url) as waiter,
    ):
        locker, process = Locker(holder, watcher), await waiter.fetchval("SELECT pg_backend_pid()")
        async with locker.holding("SELECT pg_advisory_xact_lock(1)"):
            waiting = asyncio.create_task(waiter.execute(SHARED))
            await locker.waiting()
            os.kill(process, signal.SIGSTOP)
        try:
            assert await locker.number_waiting() == 0
        finally:
            os.kill(process, signal.SIGCONT)
            await waiting
