"""A replica's own session with Postgres, which receives notifications, and shows that the replica lives."""

import asyncio
from collections.abc import Callable

import asyncpg
import structlog

from turnstream.storage.hosts import open_connection

log = structlog.get_logger(__name__)

# The channel of the notifications, in SQL. Another installation in the same database has another schema.
CHANNEL = "'turnstream' || CASE current_schema() WHEN 'public' THEN '' ELSE '.' || left(current_schema(), 50) END"
# The notification for the runners of jobs: a job may be due, or over.
JOBS = "jobs"
_RECONNECT = 0.2  # seconds
_PROBE = 5.0  # seconds in which a broken session is detected


class ReplicaSession:
    """One connection outside the pool, which holds the advisory lock `key` for its whole life. `on_notify` gets the
    payload of every notification. Lock and notifications are only hints: if the session is lost, other replicas check
    the lease; a lost notification costs a poll interval. `on_open` is called when the session begins to receive
    notifications; earlier notifications are lost. `on_lost` is called at the end of the session, and after each failed
    try to reopen it.
    """

    def __init__(
        self,
        url: str,
        key: int,
        on_notify: Callable[[str], None],
        on_lost: Callable[[], None] = lambda: None,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = url
        self._key = key
        self._on_notify = on_notify
        self._on_lost = on_lost
        self._on_open = on_open

    async def run(self) -> None:
        """Keeps a session open for ever: opens it again after a loss."""
        while True:
            try:
                await self._live()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                log.warning("session.lost", error=str(error))
            self._on_lost()
            await asyncio.sleep(_RECONNECT)

    async def _live(self) -> None:
        connection = await open_connection(self._url, timeout=_PROBE)
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _connection: ended.set())
        try:
            # A shared lock, because after a broken connection Postgres may still hold the lock of the previous session.
            await connection.execute("SELECT pg_advisory_lock_shared($1)", self._key, timeout=_PROBE)
            channel = await connection.fetchval(f"SELECT {CHANNEL}", timeout=_PROBE)
            if channel is None:
                raise ConnectionError("the search path leads to no schema that the user of Postgres may use")
            await connection.add_listener(channel, lambda _c, _pid, _channel, payload: self._on_notify(str(payload)))
            self._on_open()
            while not ended.is_set():
                try:
                    async with asyncio.timeout(_PROBE):
                        await ended.wait()
                except TimeoutError:
                    await connection.execute("SELECT 1", timeout=_PROBE)
        finally:
            connection.terminate()
