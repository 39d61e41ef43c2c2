"""A pool of connections to Postgres. A loan from the driver's own pool costs several times as much as a statement."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import asyncpg

from turnstream.storage.driver import is_in_transaction, terminate


class Pool:
    """Lends up to `size` connections, each to one task at a time. If no connection is idle, `connect` opens another,
    and the pool keeps it. The most recently used connection is lent first; waiting tasks are served in their order.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], size: int) -> None:
        self.size = size
        self._connect = connect
        self._valid: dict[Any, float] = {}  # reusable connections, each with the time of its last return
        self._idle: list[Any] = []
        self._unopened = size  # connections that the pool may still open
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._closing = False

    @property
    def has_idle(self) -> bool:
        return bool(self._idle)

    async def acquire(self) -> Any:
        """Waits for a connection, and sets no time limit itself. The caller must pass the connection to `release`."""
        if self._closing:
            raise asyncpg.InterfaceError("the pool is closed")
        connection = await self._taken()
        if connection is not None:
            if not connection.is_closed():
                return connection
            self._valid.pop(connection, None)
        try:
            connection = await self._connect()
        except BaseException:
            self._pass_on(None)
            raise
        self._valid[connection] = monotonic()
        return connection

    def release(self, connection: Any) -> None:
        """Gives the connection to the next task. Closes it instead if it has expired or has an open transaction."""
        if connection in self._valid and not connection.is_closed() and not is_in_transaction(connection):
            self._valid[connection] = monotonic()
            self._pass_on(connection)
            return
        self._valid.pop(connection, None)
        terminate(connection)
        self._pass_on(None)

    def expire(self, since: float) -> None:
        """Closes the idle connections that were last returned before `since`, a time of `monotonic`: on these
        connections Postgres has not answered recently. A lent connection of the same age is closed when it is returned.
        """
        self._valid = {connection: back for connection, back in self._valid.items() if back >= since}
        for connection in self._idle:
            if connection not in self._valid:
                terminate(connection)
                self._unopened += 1
        self._idle = [connection for connection in self._idle if connection in self._valid]

    async def close(self) -> None:
        """Waits until lent connections are returned, and closes all connections. A cancellation closes all at once."""
        self._closing = True
        try:
            for _ in range(self.size):
                if (connection := await self._taken()) is not None:
                    await connection.close()
        finally:
            for connection in self._valid:
                connection.terminate()

    async def _taken(self) -> Any:
        """Waits for an idle connection. Returns None instead if the caller may open a connection."""
        if self._idle:
            return self._idle.pop()
        if self._unopened:
            self._unopened -= 1
            return None
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled():  # the task got the connection before its cancellation
                self._pass_on(future.result())
            raise

    def _pass_on(self, connection: Any) -> None:
        """Gives the connection to the first waiting task, or keeps it. None permits the task to open a connection."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(connection)
                return
        if connection is None:
            self._unopened += 1
        else:
            self._idle.append(connection)
