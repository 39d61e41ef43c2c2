"""Statements between the final message of Postgres and the closed connection: they find Postgres unavailable."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from app.domain.errors import StatementRefused, StorageUnavailable
from app.storage.database import Database, Statement


class ClosingPool:
    """Its connection has read the server's final message: the driver reports `cannot switch to state`."""

    def __init__(self, message: str) -> None:
        self._message = message

    @asynccontextmanager
    async def acquire(self, timeout: float) -> AsyncIterator["ClosingPool"]:  # noqa: ASYNC109, of the driver
        yield self

    async def fetch(self, _sql: str, timeout: float | None) -> object:  # noqa: ASYNC109
        raise asyncpg.InternalClientError(self._message)

    def terminate(self) -> None: ...


async def test_postgres_counts_as_away_between_its_final_message_and_the_closed_connection() -> None:
    pool = ClosingPool("cannot switch to state 15; another operation (2) is in progress")
    with pytest.raises(StorageUnavailable):
        await Database(pool, 1).rows(Statement("SELECT 1"))


async def test_any_other_failure_inside_the_driver_is_a_bug() -> None:
    with pytest.raises(StatementRefused):
        await Database(ClosingPool("unexpected message"), 1).rows(Statement("SELECT 1"))
