"""The connection to Postgres: statements are named constants, and only this module commits.

A statement is compiled to the driver's form once, when it is declared. Statements run on the raw driver, which costs a
ninth of an execution by SQLAlchemy.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import count
from time import monotonic, perf_counter
from typing import Any, Final, Literal, NoReturn, TypeVar
from urllib.parse import parse_qs, urlsplit
from weakref import WeakValueDictionary

import asyncpg
import msgspec
import structlog

from turnstream.domain.errors import (
    ConfigError,
    Overloaded,
    StatementRefused,
    StatementTooLong,
    StorageError,
    StorageUnavailable,
)
from turnstream.kit.backoff import backoff, jittered
from turnstream.kit.clock import CLOCK
from turnstream.storage.contents import Codec, SealedColumns
from turnstream.storage.driver import terminate
from turnstream.storage.hosts import SESSION_SETTINGS, open_connection
from turnstream.storage.pool import Pool
from turnstream.telemetry import POOL_IN_USE, POOL_REFUSALS, POOL_WAIT_SECONDS

log = structlog.get_logger(__name__)

Row = asyncpg.Record
T = TypeVar("T")

# Seconds between two tries while Postgres is unavailable.
_FIRST_WAIT = 0.05
_LONGEST_WAIT = 1.0

# The time limit in seconds of a statement whose work grows with the data, such as a sweep or the deletion of a chat.
LONG = 120.0

# Seconds in which a connection outside of a pool must open, and in which each of its statements must be answered.
ANSWER_TIMEOUT = 10.0

# Seconds that a stopping server has for its last writes, and again as many seconds to close its connections.
FINAL_WRITE_TIMEOUT = 5.0

_ISOLATION: Final = SESSION_SETTINGS["default_transaction_isolation"]
# Reads the default isolation of a new session.
_DEFAULT_ISOLATION: Final = "SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation'"

_HOST = r"(?:\[[0-9a-fA-F:.%]+\]|[^/?#@:,\[\]]*)(?::[0-9]{1,5})?"
# The parts are user and password, hosts, database, parameters.
_ADDRESS = re.compile(rf"(?:[^/?#@\[\]]*@)?{_HOST}(?:,{_HOST})*(?:/[^?#@]*)?(?:\?[^#]*)?")

# Parameters have the syntax of SQLAlchemy's `text`. An import of SQLAlchemy would take a tenth of the server's start.
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)(?!:)")

# The classes of SQLSTATE for errors of the statement or its values, after which a retry fails too: cardinality, data,
# integrity, syntax and access, limits of the program, errors of functions, internal errors.
_REFUSALS = frozenset({"21", "22", "23", "42", "54", "P0", "XX"})
# Errors of these classes that are nevertheless temporary: an operator has revoked a privilege for a while; the search
# path or such a revocation hides a table, a type or a function; a pooler has a prepared statement of another client.
_PASSING = frozenset({"42501", "42704", "42883", "42P01", "42P05"})
# The functions in Postgres that refuse a row by a policy. The message cannot show this: it is in the server's language.
_BY_POLICY = frozenset({"ExecWithCheckOptions", "check_enable_rls"})
# All other errors are temporary: no connection, no resources, an operator's intervention, a deadlock or a lock, tables
# that a newer version has just changed, a standby before its promotion, a pooler that lost a statement.
_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Signs the owner, actor and principals in statements of the API's role. The Postgres function `signed_value`
    verifies the signatures with the same key. The fields are the two padded halves of the key, as in HMAC-SHA256.
    """

    inner_pad: bytes
    outer_pad: bytes

    @classmethod
    def generate(cls) -> "SigningKey":
        key = secrets.token_bytes(32).ljust(64, b"\0")
        return cls(bytes(byte ^ 0x36 for byte in key), bytes(byte ^ 0x5C for byte in key))

    def sign(self, kind: Literal["owner", "actor", "principals"], value: str) -> str:
        inner = sha256(self.inner_pad + f"{kind}:{value}".encode()).digest()
        return f"{sha256(self.outer_pad + inner).hexdigest()}:{value}"


# The owner for whom a request executes statements. With row-level security, statements without an owner see no rows.
OWNER: ContextVar[str] = ContextVar("owner", default="")
# True if a request executes the statement; false if a running turn or the server's own work executes it.
OF_REQUEST: ContextVar[bool] = ContextVar("of_request", default=False)
# True if the request has no verified credential yet. Anybody can send any number of such requests.
ANONYMOUS: ContextVar[bool] = ContextVar("anonymous", default=False)
ANONYMOUS_SHARE: Final = 5  # a fifth of a pool's connections, but at least two, serve anonymous requests
PATIENCE: Final = 1.0  # seconds: if the first request in a line waits longer, new requests are refused
_WITH = re.compile(r"\s*WITH( RECURSIVE)?\b")


class Statement:
    """One operation in SQL, whose parameters are written `:name`. Values reach the driver unchanged. A `timeout` in
    seconds replaces the database's own, and raises StatementTooLong. `for_owner` is the same statement with one more
    parameter, the owner. The parameters in `seals` and the result columns in `opens` may be encrypted in rows.
    """

    __slots__ = ("for_owner", "names", "opens", "seals", "sql", "timeout")

    def __init__(
        self,
        sql: str,
        *,
        timeout: float | None = None,
        seals: Sequence[SealedColumns] = (),
        opens: Sequence[SealedColumns] = (),
    ) -> None:
        self.timeout, self.seals, self.opens = timeout, seals, opens
        self.names = tuple(dict.fromkeys(_PARAMETER.findall(sql)))  # $1 is the first
        numbers = {name: f"${number}" for number, name in enumerate(self.names, 1)}
        self.sql = _PARAMETER.sub(lambda found: numbers[found[1]], sql)
        # Postgres converts the parameter to the domain `owner_scope` before it plans and executes the statement. The
        # check of the domain sets the owner for this transaction (`schema.sql`), which needs no round trip and works
        # behind a pooler. Postgres never runs the query of the CTE.
        found = _WITH.match(self.sql)
        scope = f"AS (SELECT CAST(${len(self.names) + 1} AS owner_scope))"
        recursive = (found and found[1]) or ""
        rest = f", {self.sql[found.end() :].lstrip()}" if found else f" {self.sql}"
        self.for_owner = f"WITH{recursive} the_owner {scope}{rest}"

    def arguments(self, values: dict[str, Any]) -> list[Any]:
        """Returns the values of the parameters, in their order. Raises KeyError if a parameter has no value."""
        return [values[name] for name in self.names]


class Transaction:
    """Executes statements inside one transaction. `raw` is the driver's connection."""

    def __init__(self, raw: Any, key: SigningKey | None = None, codec: Codec | None = None) -> None:
        self.raw = raw
        self.key = key
        self.codec = codec

    async def rows(self, statement: Statement, **values: Any) -> Sequence[Row]:
        sql, arguments = prepared(statement, await _as_stored(self.codec, statement, values), self.key)
        with limit_of(statement, self.raw):
            rows: Sequence[Row] = await self.raw.fetch(sql, *arguments, timeout=statement.timeout)
        return await _as_given(self.codec, statement, values, rows)

    async def row(self, statement: Statement, **values: Any) -> Row | None:
        rows = await self.rows(statement, **values)
        return rows[0] if rows else None

    async def batches(self, statement: Statement, size: int, **values: Any) -> AsyncIterator[Sequence[Row]]:
        """Yields the rows in portions of `size`, so that they are never in memory all at once."""
        sql, arguments = prepared(statement, values, self.key)
        with limit_of(statement, self.raw):
            cursor = await self.raw.cursor(sql, *arguments, timeout=statement.timeout)
        while True:
            with limit_of(statement, self.raw):
                rows = await cursor.fetch(size, timeout=statement.timeout)
            if not rows:
                return
            yield rows


class Database:
    """Executes statements on the connections of a pool. Each statement outside of `transaction` is its own transaction.
    A caller waits up to `timeout` seconds for a connection. With a `key`, which signs the owner in OWNER, row-level
    security limits each statement to the rows of that owner. `name` is the name of the pool in metrics.

    Raises StorageUnavailable if Postgres is unreachable, does not answer in time, or cannot execute the statement now,
    and StatementRefused if no retry can succeed.
    """

    key: SigningKey | None = None
    codec: Codec | None = None

    def __init__(self, pool: Pool, timeout: float, key: SigningKey | None = None, name: str | None = None) -> None:
        self._pool = pool
        self._timeout = timeout
        self.key = key
        name = name or ("api" if key else "engine")
        self._in_use, self._wait_seconds = POOL_IN_USE.labels(name), POOL_WAIT_SECONDS.labels(name)
        self._refusals = POOL_REFUSALS.labels(name)
        # Requests never use all connections: some remain for running turns.
        self._requests = _Line(max(1, pool.size - max(1, pool.size // 4)))
        self._anonymous = _Line(max(2, pool.size // ANONYMOUS_SHARE))
        self._shares: WeakValueDictionary[str, _Line] = WeakValueDictionary()

    def signed_actor(self, actor: str) -> str:
        """Returns the actor of a request for the audit trail, signed if there is a key."""
        return self.key.sign("actor", actor) if self.key else actor

    def signed_principals(self, principals: Sequence[str]) -> str:
        """Returns the principals of a request for asks with approvers (`principals_of`); signed if there is a key."""
        text = msgspec.json.encode(principals).decode()
        return self.key.sign("principals", text) if self.key else text

    async def rows(self, statement: Statement, **values: Any) -> Sequence[Row]:
        stored = await _as_stored(self.codec, statement, values)
        with self._lent(*await self._lend()) as raw:
            rows = await _fetch(raw, statement, *prepared(statement, stored, self.key))
        return await _as_given(self.codec, statement, values, rows)

    async def row(self, statement: Statement, **values: Any) -> Row | None:
        rows = await self.rows(statement, **values)
        return rows[0] if rows else None

    @asynccontextmanager
    async def transaction(self, *, snapshot: bool = False) -> AsyncIterator[Transaction]:
        """Commits at the end of the block, rolls back after an exception. All reads of a `snapshot` see one moment."""
        isolation = "repeatable_read" if snapshot else None
        with self._lent(*await self._lend()) as raw:
            async with raw.transaction(isolation=isolation, readonly=snapshot):
                yield Transaction(raw, self.key, self.codec)

    def _lines(self) -> Sequence["_Line"]:
        """Returns the lines in which a request waits for a connection; other work waits in no line. The requests of one
        owner get at most half of the connections, and anonymous requests share a fifth of the pool.
        """
        if not OF_REQUEST.get():
            return ()
        if ANONYMOUS.get():
            return (self._anonymous, self._requests)
        owner = OWNER.get()
        if not owner:
            return (self._requests,)
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = _Line(max(1, self._pool.size // 2))
        return (share, self._requests)

    async def _lend(self) -> tuple[Any, Sequence["_Line"]]:
        """Returns a connection, and the lines that the caller has entered. `_lent` releases both."""
        start, lines, entered = perf_counter(), self._lines(), 0
        waits = not self._pool.has_idle or any(line.is_full for line in lines)
        try:
            async with asyncio.timeout(self._timeout) if waits else nullcontext():
                for line in lines:
                    line.check()  # checks all lines before the first wait, so that a refusal is immediate
                for line in lines:
                    await line.enter()
                    entered += 1
                raw = await self._pool.acquire()
        except BaseException as error:
            for line in lines[:entered]:
                line.leave()
            if isinstance(error, _ERRORS):
                self._fail(error, lent=False)
            if isinstance(error, Overloaded):
                self._refusals.inc()
            raise
        self._wait_seconds.observe(perf_counter() - start)
        self._in_use.inc()
        return raw, lines

    @contextmanager  # an asynchronous context manager would cost more than the loan
    def _lent(self, raw: Any, lines: Sequence["_Line"]) -> Iterator[Any]:
        try:
            try:
                yield raw
            finally:
                self._in_use.dec()
                self._pool.release(raw)
                for line in lines:
                    line.leave()
        except _ERRORS as error:
            self._fail(error, lent=True)

    def _fail(self, error: Exception, *, lent: bool) -> NoReturn:
        # After a timeout, the driver may also fail to roll back, and then raises its own error instead of the first.
        first = error.__context__ if isinstance(error, asyncpg.InterfaceError) else error
        if isinstance(first, StatementTooLong):
            raise first from None
        if not isinstance(first, TimeoutError):
            raise _sorted(error) from error
        if not lent:
            raise StorageUnavailable("All connections to Postgres are busy, or no connection can be opened.") from first
        # The host is unreachable or frozen. Other connections without a recent answer lead to the same host.
        self._pool.expire(monotonic() - self._timeout)
        raise StorageUnavailable("Postgres does not answer.") from first


class _Line:
    """Admits at most `places` requests at once; others wait in their order. If the first has waited for PATIENCE,
    requests arrive faster than answers, and new requests are refused. So the line is short, and soon empties.
    """

    __slots__ = ("__weakref__", "_places", "_since")

    def __init__(self, places: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._since: dict[object, float] = {}  # arrival times of the waiting requests, oldest first

    @property
    def is_full(self) -> bool:
        return self._places.locked()

    def check(self) -> None:
        """Raises Overloaded if the line is too long."""
        if self.is_full and self._since and monotonic() - next(iter(self._since.values())) >= PATIENCE:
            raise Overloaded("More requests wait for the database than the server can answer now.")

    async def enter(self) -> None:
        if not self.is_full:
            await self._places.acquire()  # at once
            return
        mark = object()
        self._since[mark] = monotonic()
        try:
            await self._places.acquire()
        finally:
            del self._since[mark]

    def leave(self) -> None:
        self._places.release()


async def _as_stored(codec: Codec | None, statement: Statement, values: dict[str, Any]) -> dict[str, Any]:
    if codec is not None:
        for contents in statement.seals:
            values = await codec.seal(contents, values)
    return values


async def _as_given(
    codec: Codec | None, statement: Statement, values: dict[str, Any], rows: Sequence[Row]
) -> Sequence[Row]:
    """Returns the rows with opened values. A row that had sealed values becomes a mapping, not a sequence."""
    if codec is not None and rows:
        for contents in statement.opens:
            rows = await codec.open(contents, values, rows)
    return rows


def prepared(statement: Statement, values: dict[str, Any], key: SigningKey | None) -> tuple[str, list[Any]]:
    arguments = statement.arguments(values)
    if key is None:
        return statement.sql, arguments
    owner = OWNER.get()
    return statement.for_owner, [*arguments, key.sign("owner", owner) if owner else ""]


@contextmanager
def limit_of(statement: Statement, *connections: Any) -> Iterator[None]:
    """Closes the connections if the statement is not answered in time, because a rollback would wait too. If the
    statement has its own `timeout`, raises StatementTooLong, even after a shorter `statement_timeout` of Postgres.
    """
    try:
        yield
    except (TimeoutError, asyncpg.QueryCanceledError) as error:
        if isinstance(error, TimeoutError):
            for connection in connections:
                terminate(connection)
        if statement.timeout is None:
            raise
        raise StatementTooLong(f"A statement exceeded its time limit of {statement.timeout:g} seconds.") from error


async def _fetch(raw: Any, statement: Statement, sql: str, arguments: Sequence[Any]) -> Sequence[Row]:
    """Executes a statement, and closes the connection after any error that is not an answer of the server. If a call is
    cancelled between two messages of the driver, Postgres waits in the middle of a command: the next statement on this
    connection would run in the same transaction.
    """
    try:
        with limit_of(statement, raw):
            rows: Sequence[Row] = await raw.fetch(sql, *arguments, timeout=statement.timeout)
    except StatementTooLong:
        raise
    except BaseException as error:
        if getattr(error, "severity", None) is None:  # the error is not an answer of the server
            with suppress(asyncpg.InterfaceError):  # perhaps closed already
                terminate(raw)
        raise
    return rows


def _sorted(error: Exception) -> StorageError:
    """Converts an error to a StorageError. The driver's own errors mean a lost connection, a wrong server, or a bug of
    ours. "cannot switch to state" means a lost connection whose last message, but not whose end, the driver has read.
    """
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        refused = state[:2] in _REFUSALS and (state not in _PASSING or error.server_source_function in _BY_POLICY)
    else:
        lost = isinstance(error, OSError | asyncpg.TargetServerAttributeNotMatched)
        refused = not lost and not any(word in str(error) for word in ("clos", "cannot switch to state"))
    if refused:
        return StatementRefused(f"Postgres refuses a statement: {error}")
    return StorageUnavailable(f"Postgres cannot be reached: {error}")


def plain_url(url: str, setting: str = "DATABASE_URL") -> str:
    """Returns `url` in the driver's form, postgresql://…. Raises ConfigError with the name of the setting if `url` is
    not an address. The error does not show the driver's text, which may contain a part of the password.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in {"postgres", "postgresql", "postgresql+asyncpg"} or not _ADDRESS.fullmatch(rest):
        raise ConfigError(
            f"{setting} must be an address such as postgresql://user:password@host:5432/database; in the password,"
            " / ? # @ [ ] are written as %2F %3F %23 %40 %5B %5D."
        )
    return f"postgresql://{rest}"


def address_of(url: str) -> str:
    """Returns host, port and name of the database at `url`, for people: without user, password and options."""
    return plain_url(url).removeprefix("postgresql://").partition("?")[0].rpartition("@")[2]


def unusable(setting: str, url: str, error: Exception) -> ConfigError:
    reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return ConfigError(f"{setting} names {address_of(url)}, a database that cannot be used: {reason}")


@asynccontextmanager
async def single_connection(url: str, **options: Any) -> AsyncIterator[Any]:
    """Opens a driver's connection for a few statements. Raises TimeoutError with a text if Postgres does not answer."""
    try:
        connection = await open_connection(url, timeout=ANSWER_TIMEOUT, command_timeout=ANSWER_TIMEOUT, **options)
        try:
            yield connection
        finally:
            await connection.close(timeout=FINAL_WRITE_TIMEOUT)
    except TimeoutError as error:
        raise TimeoutError(f"it does not answer within {ANSWER_TIMEOUT:g} seconds") from error


def in_schema(url: str, schema: str) -> str:
    """Returns `url` (postgresql://…) with the schema as search path. Poolers do not forward this session parameter."""
    return f"{url}{'&' if '?' in url else '?'}search_path={schema}"


def schema_of(url: str) -> str | None:
    """Returns the first schema of the search path in `url`; None without a search path."""
    paths = parse_qs(urlsplit(url).query).get("search_path")
    return paths[-1].partition(",")[0].strip(' "') if paths else None


async def retry_while_unavailable(work: Callable[[], Awaitable[T]]) -> T:
    """Repeats `work` until Postgres is available. `work` must be idempotent, because it may have been done although its
    answer was lost. Raises StatementTooLong without a retry, because a retry would take as long again.
    """
    for failures in count(1):
        try:
            return await work()
        except StatementTooLong:
            raise
        except StorageUnavailable as error:
            wait = backoff(failures, _FIRST_WAIT, _LONGEST_WAIT)
            log.warning("storage.waits", error=str(error), seconds=wait)
        await asyncio.sleep(jittered(wait))
    raise AssertionError  # the count never ends


@asynccontextmanager
async def connect(
    url: str,
    *,
    size: int,
    statement_timeout: float = 30.0,
    statement_cache: int = 100,
    actor: str = "",
    key: SigningKey | None = None,
    schema: str | None = None,
    pooled: bool = False,
) -> AsyncIterator[Database]:
    """Opens the database at `url` (postgresql://…) with up to `size` connections, and closes them at the end. Each
    statement has `statement_timeout` seconds. Each connection keeps up to `statement_cache` prepared statements; a
    pooler that changes connections between transactions may allow none. `actor` is the operator in the audit trail, and
    needs a connection without a pooler. With a `key`, row-level security applies to the user of `url`. `schema` is the
    schema of the tables. `pooled`: each transaction may get another session, so the isolation must be the role's
    default. Raises ConfigError if the database cannot be opened, or has another schema or isolation.
    """
    name = "TURNSTREAM_API_DATABASE_URL" if key else "DATABASE_URL"
    pool = Pool(partial(_opened, url, statement_timeout, statement_cache, actor), size)
    try:
        try:
            connection = await pool.acquire()
            try:
                asked = monotonic()
                CLOCK.learn(await connection.fetchval("SELECT clock_timestamp()"), asked, monotonic())
                found = await connection.fetchval("SELECT current_schema()") if schema else None
                isolation = await connection.fetchval(_DEFAULT_ISOLATION) if pooled else _ISOLATION
            finally:
                pool.release(connection)
        except _ERRORS as error:  # a pooler in between may fail although Postgres answers
            raise unusable(name, url, error) from error
        if found != schema:
            raise ConfigError(
                f"{name} leads to the schema {found}, and TURNSTREAM_DB_SCHEMA is {schema}: its user needs the search"
                f" path behind a pooler (ALTER ROLE … IN DATABASE … SET search_path = {schema}; then new connections)."
            )
        if isolation != _ISOLATION:
            raise ConfigError(
                f"{name} leads through a pooler to transactions of the isolation {isolation!r}, and turnstream needs"
                f" {_ISOLATION!r}: its user needs that default (ALTER ROLE … IN DATABASE … SET"
                f" default_transaction_isolation = '{_ISOLATION}'; then new connections)."
            )
        yield Database(pool, statement_timeout, key)
    finally:
        await _close(pool)


@asynccontextmanager
async def connect_when_used(
    name: str, url: str, size: int, statement_timeout: float, statement_cache: int, key: SigningKey | None
) -> AsyncIterator[Database]:
    """Opens the database, but connects only at the first statement, so that a server starts even if this database is
    unavailable. `name` is the name of the database in metrics.
    """
    pool = Pool(partial(_opened, url, statement_timeout, statement_cache, ""), size)
    try:
        yield Database(pool, statement_timeout, key, name)
    finally:
        await _close(pool)


async def _opened(url: str, statement_timeout: float, statement_cache: int, actor: str) -> Any:
    connection = await open_connection(
        url, timeout=statement_timeout, command_timeout=statement_timeout, statement_cache_size=statement_cache
    )
    if actor:
        await connection.execute("SELECT set_config('turnstream.actor', $1, false)", actor)
    return connection


async def _close(pool: Pool) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(FINAL_WRITE_TIMEOUT):
            await pool.close()
