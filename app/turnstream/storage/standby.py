"""A hot standby: a copy of the database that follows the primary, for reads that may be some seconds old.

How old a snapshot of it is, a replica knows by its own monotonic clock alone: it writes the end of its lease into its
row on the primary, and remembers when it asked for each renewal. The standby commits in the order of the primary, so a
snapshot that shows a renewal has all that was committed before it was asked for. A standby that stands still, or
follows another primary, shows no new one.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any
from uuid import UUID

import asyncpg
import structlog

from turnstream.domain.errors import ConfigError, StatementTooLong, StorageError, StorageUnavailable
from turnstream.kit.circuit import Circuit
from turnstream.storage.database import Database, Row, Statement, Transaction, single_connection
from turnstream.storage.runs.queue import Renewal, Renewals
from turnstream.telemetry import STANDBY_AGE_SECONDS

log = structlog.get_logger(__name__)

# Seconds for the standby to accept a connection, and for each statement; then the primary is asked.
PATIENCE = 2.0
# Seconds for which a standby that did not answer is left alone.
_PAUSE = 5.0

# Errors of one read, and not of the next. A conflict with recovery (a vacuum on the primary, for one) cancels a query,
# and between two queries ends the session. That the standby is away is shown by a connection that cannot be opened.
_OF_ONE_READ = (
    asyncpg.TransactionRollbackError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InterfaceError,
)

_SYSTEM = "SELECT system_identifier FROM pg_control_system()"
_POSITION = "SELECT pg_current_wal_insert_lsn()"
_HAS_REPLAYED = "SELECT pg_last_wal_replay_lsn() >= CAST($1 AS pg_lsn)"
GET_LEASE = Statement("SELECT lease_until FROM replicas WHERE id = :replica")


class Moment(Database):
    """One snapshot of the standby. It has all that was committed `age` seconds ago, and that was before `time` of the
    database. The age is infinite, and no time known, where it shows no renewal of this replica.
    """

    def __init__(self, transaction: Transaction, renewal: Renewal | None) -> None:
        self._transaction = transaction
        self._asked = -math.inf if renewal is None else renewal.asked
        self.time = None if renewal is None else renewal.time

    @property
    def age(self) -> float:
        return monotonic() - self._asked

    async def rows(self, statement: Statement, **values: Any) -> Sequence[Row]:
        return await self._transaction.rows(statement, **values)

    @asynccontextmanager
    async def transaction(self, *, snapshot: bool = False) -> AsyncIterator[Transaction]:  # noqa: ARG002, it is one
        yield self._transaction


class Standby:
    """`database` is its pool, `replica` this replica, whose lease `renewals` renew on the primary."""

    def __init__(self, database: Database, replica: UUID, renewals: Renewals) -> None:
        self._database = database
        self._replica = replica
        self._renewals = renewals
        self._circuit = Circuit(1, _PAUSE, monotonic)

    @asynccontextmanager
    async def moment(self) -> AsyncIterator[Moment]:
        """Raises StorageError, at once where the standby has not answered lately."""
        if self._circuit.wait is not None:
            raise StorageUnavailable("The standby has not answered lately.")
        with self._circuit.trial():
            try:
                async with self._database.transaction(snapshot=True) as transaction:
                    row = await transaction.row(GET_LEASE, replica=self._replica)
                    moment = Moment(transaction, self._renewals.that_wrote(row["lease_until"]) if row else None)
                    STANDBY_AGE_SECONDS.set(moment.age)
                    if self._circuit.succeeded():
                        log.info("standby.back")
                    yield moment
            except StorageError as error:
                of_one_read = isinstance(error, StatementTooLong) or isinstance(error.__cause__, _OF_ONE_READ)
                if not of_one_read and self._circuit.failed():
                    log.warning("standby.away", error=str(error), seconds=_PAUSE)
                raise


async def standby_lag(url: str, primary: str, most: float) -> float | None:
    """The seconds after which the standby at `url` has what `primary` has now; None for more than `most`. Raises
    ConfigError for a server that is no standby of it.
    """
    try:
        async with (
            single_connection(url, statement_cache_size=0) as connection,  # it may pass a pooler
            single_connection(primary) as other,
        ):
            if await connection.fetchval(_SYSTEM) != await other.fetchval(_SYSTEM):
                raise ConfigError("TURNSTREAM_STANDBY_URL names a server that is no copy of the one of DATABASE_URL.")
            if not await connection.fetchval("SELECT pg_is_in_recovery()"):
                raise ConfigError("TURNSTREAM_STANDBY_URL names a primary; name one that follows it.")
            position, begun = await other.fetchval(_POSITION), monotonic()
            while not await connection.fetchval(_HAS_REPLAYED, position):
                if monotonic() - begun > most:
                    return None
                await asyncio.sleep(0.05)
            return monotonic() - begun
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ConfigError(f"TURNSTREAM_STANDBY_URL does not answer: {error}.") from error
