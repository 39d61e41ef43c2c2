"""A replica's own session with Postgres: others see by it that the replica lives; and it hears the doorbell."""

import asyncio
from collections.abc import Callable

import asyncpg
import structlog

log = structlog.get_logger(__name__)

CHANNEL = "turnstream"
_RECONNECT = 0.2  # seconds
_PROBE = 5.0  # seconds; a session that died without a word is noticed by then


class ReplicaSession:
    """`key` is the advisory lock that says "I live". `hear` gets the payload of every notification. Both are only
    hints: a lost session costs others a look at the lease, a lost notification costs a poll interval. `lost` is called
    when the session has ended, and again for every try that could not open it.
    """

    def __init__(
        self, url: str, key: int, hear: Callable[[str], None], lost: Callable[[], None] = lambda: None
    ) -> None:
        self._url = url
        self._key = key
        self._hear = hear
        self._lost = lost

    async def run(self) -> None:
        """For ever: a session that is lost is opened again."""
        while True:
            try:
                await self._live()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                log.warning("session.lost", error=str(error))
            self._lost()
            await asyncio.sleep(_RECONNECT)

    async def _live(self) -> None:
        connection = await asyncpg.connect(self._url)
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _connection: ended.set())
        try:
            # Shared: should the session before have died without a word, Postgres still keeps its lock.
            await connection.execute("SELECT pg_advisory_lock_shared($1)", self._key, timeout=_PROBE)
            await connection.add_listener(CHANNEL, lambda _c, _pid, _channel, payload: self._hear(str(payload)))
            while not ended.is_set():
                await self._probe(connection, ended)
        finally:
            connection.terminate()

    async def _probe(self, connection: asyncpg.Connection, ended: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(_PROBE):
                await ended.wait()
        except TimeoutError:
            await connection.execute("SELECT 1", timeout=_PROBE)
