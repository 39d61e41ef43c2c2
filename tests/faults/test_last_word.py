"""Postgres says goodbye and hangs up a moment later: whoever asks in between finds it away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from app.domain.errors import StorageUnavailable
from app.storage.database import Database, Statement


class DyingPool:
    """Its connection has read the server's last word: the driver says then that it `cannot switch to state`."""

    def __init__(self, message: str) -> None:
        self._message = message

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator["DyingPool"]:
        yield self

    async def fetch(self, _sql: str) -> object:
        raise asyncpg.InternalClientError(self._message)

    def terminate(self) -> None: ...


async def test_between_the_last_word_and_the_hanging_up_postgres_is_away() -> None:
    pool = DyingPool("cannot switch to state 15; another operation (2) is in progress")
    with pytest.raises(StorageUnavailable):
        await Database(pool).rows(Statement("SELECT 1"))


async def test_any_other_failure_inside_the_driver_is_a_bug() -> None:
    with pytest.raises(asyncpg.InternalClientError):
        await Database(DyingPool("unexpected message")).rows(Statement("SELECT 1"))
