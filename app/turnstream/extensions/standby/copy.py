"""A hot standby: a copy of the database that follows the primary, for reads that may be some seconds old.

A replica measures the age of a snapshot only by its own monotonic clock: it writes the end of its lease into its row on
the primary, and stores the time at which it requested each renewal. The standby commits in the order of the primary, so
a snapshot that has a renewal has all commits before the request of that renewal. The snapshots of a standby that has
stopped, or follows another primary, have no new renewal.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import structlog
from pydantic import SecretStr
from starlette.requests import Request

from turnstream.api.reads import NotOnStandby, ReadStorage
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError, RequestRefused, StatementTooLong, StorageError, StorageUnavailable
from turnstream.kit.circuit import Circuit
from turnstream.libraries.extension_metrics import STANDBY_AGE_SECONDS, STANDBY_READS
from turnstream.setup.databases import addressed, database_url, session_url
from turnstream.storage.chats.chat_changes import ChatUpdates
from turnstream.storage.chats.chats import ChatReads
from turnstream.storage.chats.turns import TurnReads
from turnstream.storage.database import (
    Database,
    Row,
    Statement,
    Transaction,
    connect_when_used,
    plain_url,
    single_connection,
)
from turnstream.storage.runs.queue import Renewal, Renewals

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Time limit in seconds for the connection to the standby, and for each statement. After that the primary is used.
PATIENCE = 2.0
# Seconds for which the standby is not used after it did not answer.
_PAUSE = 5.0
# The number of lease renewals within the allowed age of a standby. The measured age is the time since the last renewal
# that the standby has, so more renewals make it more precise.
_RENEWALS = 5

# Errors of a single read. A conflict with recovery (for example a vacuum on the primary) cancels a query; between two
# queries it terminates the session. Only a failed connection shows that the standby is unreachable.
_OF_ONE_READ = (
    asyncpg.TransactionRollbackError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InterfaceError,
)

_SYSTEM = "SELECT system_identifier FROM pg_control_system()"
_POSITION = "SELECT pg_current_wal_insert_lsn()"
_HAS_REPLAYED = "SELECT pg_last_wal_replay_lsn() >= CAST($1 AS pg_lsn)"
GET_LEASE = Statement("SELECT lease_until FROM replicas WHERE id = :replica")


class StandbyMoment(Database):
    """One snapshot of the standby. It has all commits that are at least `age` seconds old, and all commits before
    `time` by the clock of the database. The age is infinite, and the time unknown, if the snapshot contains no renewal
    of this replica.
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
    """The standby at `url`, whose reads are at most `staleness` seconds old."""

    def __init__(self, url: str, staleness: float, settings: Settings) -> None:
        self._url = url
        self._staleness = staleness
        self._settings = settings

    @property
    def renewal_interval(self) -> float:
        return self._staleness / _RENEWALS

    @asynccontextmanager
    async def open(self, api: Database, replica: UUID, renewals: Renewals) -> AsyncIterator["StandbyReads"]:
        options = self._settings.pool_size, PATIENCE, self._settings.statement_cache, api.key
        async with connect_when_used("standby", self._url, *options) as database:
            database.codec = api.codec
            yield StandbyReads(database, replica, renewals, self._staleness)

    async def examined(self) -> str:
        """Describes the delay of the standby. Raises ConfigError if the server is not a standby of the primary."""
        async with database_url(self._settings) as primary:
            lag = await standby_lag(self._url, session_url(self._settings, primary), self._staleness)
        if lag is None:
            return f"more than {self._staleness:g} seconds behind: all reads are made on the primary"
        return f"follows the primary within {lag:.1f} seconds"


class StandbyReads:
    """Reads from the standby. `database` is the pool of the standby, and `replica` is this replica, whose lease
    `renewals` renew on the primary.
    """

    def __init__(self, database: Database, replica: UUID, renewals: Renewals, staleness: float) -> None:
        self._database = database
        self._replica = replica
        self._renewals = renewals
        self._staleness = staleness
        self._circuit = Circuit(1, _PAUSE, monotonic)

    async def read(self, request: Request, primary: ReadStorage, work: Callable[[ReadStorage], Awaitable[T]]) -> T:
        """Returns an answer of the standby, with the header `Age`, if the standby is not older than the server and the
        client allow; otherwise an answer of the primary.
        """
        accepted = accepted_staleness(request)
        if not accepted:
            return await work(primary)
        try:
            async with self.moment() as moment:
                if moment.age > min(accepted, self._staleness):
                    raise NotOnStandby("behind" if moment.age > self._staleness else "too_recent")
                found = await work(_read_storage(moment, primary))
        except NotOnStandby as reason:
            outcome = reason.detail
        except RequestRefused:
            outcome = "refused"
        except StorageError:
            outcome = "away"
        else:
            STANDBY_READS.labels("standby").inc()
            request.state.age = math.ceil(moment.age)
            return found
        STANDBY_READS.labels(outcome).inc()
        return await work(primary)

    @asynccontextmanager
    async def moment(self) -> AsyncIterator[StandbyMoment]:
        """Yields a snapshot of the standby. Raises StorageError, at once if the standby recently did not answer."""
        if self._circuit.wait is not None:
            raise StorageUnavailable("The standby has not answered lately.")
        with self._circuit.trial():
            try:
                async with self._database.transaction(snapshot=True) as transaction:
                    row = await transaction.row(GET_LEASE, replica=self._replica)
                    moment = StandbyMoment(transaction, self._renewals.that_wrote(row["lease_until"]) if row else None)
                    STANDBY_AGE_SECONDS.set(moment.age)
                    if self._circuit.succeeded():
                        log.info("standby.back")
                    yield moment
            except StorageError as error:
                of_one_read = isinstance(error, StatementTooLong) or isinstance(error.__cause__, _OF_ONE_READ)
                if not of_one_read and self._circuit.failed():
                    log.warning("standby.away", error=str(error), seconds=_PAUSE)
                raise


def _read_storage(moment: StandbyMoment, primary: ReadStorage) -> ReadStorage:
    search = None if primary.search is None else primary.search.on(moment)
    return ReadStorage(ChatReads(moment), ChatUpdates(moment), search, TurnReads(moment), moment.time)


def accepted_staleness(request: Request) -> float:
    """Returns how many seconds old an answer may be for the client: `max-stale` of `Cache-Control` (RFC 9111, 5.2.1.2),
    otherwise 0.
    """
    directives: dict[str, str] = {}
    for line in request.headers.getlist("cache-control"):
        for directive in line.lower().split(","):
            name, _, value = directive.partition("=")
            directives[name.strip()] = value.strip(' "')
    seconds = directives.get("max-stale", "0")
    if not {"no-cache", "no-store"}.isdisjoint(directives):
        return 0
    return math.inf if not seconds else float(seconds) if seconds.isascii() and seconds.isdecimal() else 0


async def standby_lag(url: str, primary: str, most: float) -> float | None:
    """Returns the seconds until the standby at `url` has the present state of `primary`, or None for more than `most`.
    Raises ConfigError if the server is not a standby of `primary`.
    """
    try:
        async with (
            single_connection(url, statement_cache_size=0) as connection,  # the connection may use a pooler
            single_connection(primary) as other,
        ):
            if await connection.fetchval(_SYSTEM) != await other.fetchval(_SYSTEM):
                raise ConfigError(
                    "TURNSTREAM_STANDBY_URL names a server that is no copy of the server of DATABASE_URL."
                )
            if not await connection.fetchval("SELECT pg_is_in_recovery()"):
                raise ConfigError("TURNSTREAM_STANDBY_URL names a primary; name a standby of the primary.")
            position, begun = await other.fetchval(_POSITION), monotonic()
            while not await connection.fetchval(_HAS_REPLAYED, position):
                if monotonic() - begun > most:
                    return None
                await asyncio.sleep(0.05)
            return monotonic() - begun
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ConfigError(f"TURNSTREAM_STANDBY_URL does not answer: {error}.") from error


def standby_url(settings: Settings, given: SecretStr) -> str:
    """Returns the URL in the driver's form. Raises ConfigError if it does not fit the primary's URL."""
    if settings.database_url is None:
        raise ConfigError("TURNSTREAM_STANDBY_URL must be set with DATABASE_URL: the embedded Postgres has no standby.")
    url = plain_url(given.get_secret_value(), "TURNSTREAM_STANDBY_URL")
    if settings.api_database_url is not None:
        api_url = plain_url(settings.api_database_url.get_secret_value(), "TURNSTREAM_API_DATABASE_URL")
        user = urlsplit(api_url).username
        if urlsplit(url).username != user:
            raise ConfigError(
                f"TURNSTREAM_STANDBY_URL must have the user of TURNSTREAM_API_DATABASE_URL, {user}: row-level security"
                " limits this user to the rows of one owner."
            )
    return addressed(settings, url)
