"""Statements between the last message of Postgres and the end of the connection. Such a statement must find Postgres
unavailable.
"""

import asyncpg
import pytest

from turnstream.domain.errors import StatementRefused, StorageUnavailable
from turnstream.storage.database import Database, Statement
from turnstream.storage.pool import Pool


class ClosingConnection:
    """A connection whose driver has read the server's last message, and reports `cannot switch to state`."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._top_xact = None
        self._cancellations = set[object]()

    async def fetch(self, _sql: str, timeout: float | None) -> object:  # noqa: ASYNC109, of the driver
        raise asyncpg.InternalClientError(self._message)

    def is_closed(self) -> bool:
        return False

    def is_in_transaction(self) -> bool:
        return False

    def terminate(self) -> None: ...


def database(message: str) -> Database:
    async def connect() -> ClosingConnection:
        return ClosingConnection(message)

    return Database(Pool(connect, 1), 1)


async def test_postgres_counts_as_away_between_its_final_message_and_the_closed_connection() -> None:
    closing = database("cannot switch to state 15; another operation (2) is in progress")
    with pytest.raises(StorageUnavailable):
        await closing.rows(Statement("SELECT 1"))


async def test_any_other_failure_inside_the_driver_is_a_bug() -> None:
    with pytest.raises(StatementRefused):
        await database("unexpected message").rows(Statement("SELECT 1"))
