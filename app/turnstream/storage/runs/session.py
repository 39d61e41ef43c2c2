"""A replica's own session with Postgres: it shows the others that the replica is alive, and receives notifications."""

import asyncio
from collections.abc import Callable

import asyncpg
import structlog

from turnstream.storage.hosts import open_connection

log = structlog.get_logger(__name__)

# In SQL: the channel of the notifications. Another installation in the same database has another schema.
CHANNEL = "'turnstream' || CASE current_schema() WHEN 'public' THEN '' ELSE '.' || left(current_schema(), 50) END"
# The notification for the runners of jobs: one may be due, or over.
JOBS = "jobs"
_RECONNECT = 0.2  # seconds
_PROBE = 5.0  # seconds; within them a broken session is noticed


class ReplicaSession:
    """One connection outside the pool. It holds the advisory lock `key` as long as it lives, and passes the payload of
    every notification to `on_notify`. Both are only hints: after a lost session the others check the lease, a lost
    notification costs a poll interval. `on_open` is called when the session begins to receive notifications; earlier
    notifications are lost. `on_lost` is called when the session has ended, and again after each failed try to open it.
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
        """Runs for ever: opens the session again when it is lost."""
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
            # Shared: Postgres may still hold the lock for the session before, if that one broke without closing.
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
