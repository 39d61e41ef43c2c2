"""A pool of connections to Postgres. A loan of the driver's own pool costs several times as much as a statement."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import asyncpg

from turnstream.storage.driver import is_in_transaction, terminate


class Pool:
    """Up to `size` connections, each lent to one task at a time. If no connection is idle, `connect` opens another; the
    pool keeps all. The pool lends the most recently used connection first, and serves waiting tasks in their order.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], size: int) -> None:
        self.size = size
        self._connect = connect
        self._valid: dict[Any, float] = {}  # the reusable connections, with the time of their last return
        self._idle: list[Any] = []
        self._unopened = size  # connections that the pool may still open
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._closing = False

    @property
    def has_idle(self) -> bool:
        return bool(self._idle)

    async def acquire(self) -> Any:
        """Waits for a connection, without its own time limit. The caller must call `release` with the connection."""
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
        """Lends the connection to the next task. Closes an expired connection, or one with an open transaction."""
        if connection in self._valid and not connection.is_closed() and not is_in_transaction(connection):
            self._valid[connection] = monotonic()
            self._pass_on(connection)
            return
        self._valid.pop(connection, None)
        terminate(connection)
        self._pass_on(None)

    def expire(self, since: float) -> None:
        """Closes the connections with their last return before this time of `monotonic`, because they have no recent
        answer of Postgres. Lent connections are closed at their return.
        """
        self._valid = {connection: back for connection, back in self._valid.items() if back >= since}
        for connection in self._idle:
            if connection not in self._valid:
                terminate(connection)
                self._unopened += 1
        self._idle = [connection for connection in self._idle if connection in self._valid]

    async def close(self) -> None:
        """Waits for the lent connections, and closes all. A cancellation closes all at once."""
        self._closing = True
        try:
            for _ in range(self.size):
                if (connection := await self._taken()) is not None:
                    await connection.close()
        finally:
            for connection in self._valid:
                connection.terminate()

    async def _taken(self) -> Any:
        """An idle connection, or None for permission to open a connection."""
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
        """Gives the connection to the first waiting task. None is the permission to open a connection."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(connection)
                return
        if connection is None:
            self._unopened += 1
        else:
            self._idle.append(connection)
