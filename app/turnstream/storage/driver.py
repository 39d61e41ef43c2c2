"""Private parts of asyncpg without a public equivalent. `tests/contracts/test_private_parts.py` tests their behaviour;
`pyproject.toml` bounds the version.
"""

import socket
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final

import asyncpg

# Seconds, a count, and milliseconds.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
# Descriptions of types by the address of Postgres and their oids. Statements use one type beyond the types of Postgres,
# the domain `owner_scope`.
_described: dict[tuple[object, frozenset[int]], Any] = {}
# Replaces the query for types, because that query would replace the driver's last prepared statement.
_NOT_ASKED: Final = SimpleNamespace(name="not asked")


class DriverConnection(asyncpg.Connection):
    """A connection with the type descriptions of earlier connections. The driver's query for these takes 15 ms."""

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float) -> Any:  # noqa: ASYNC109
        key = (self._addr, frozenset(typeoids))  # type: ignore[attr-defined]
        if key in _described:
            return _described[key], _NOT_ASKED
        types, asked = await super()._introspect_types(typeoids, timeout)  # type: ignore[misc]
        _described[key] = types
        return types, asked


def terminate(connection: Any) -> None:
    """Closes a connection at once. After a statement without an answer in time, the driver asks Postgres to cancel the
    statement, and that request continues. Without a cancellation, Postgres keeps the session until the statement gets
    its lock, and may run out of connections.
    """
    connection._cancellations.clear()  # else the driver would end these requests; each has a statement's time
    connection.terminate()


def is_in_transaction(connection: Any) -> bool:
    # A cancelled or failed BEGIN is only in `_top_xact`. The BEGIN may still take effect: the writes of the next task
    # would be in that transaction, and be lost with it.
    return connection.is_in_transaction() or connection._top_xact is not None


def keep_alive(connection: Any) -> None:
    """Lets the kernel end a TCP connection with a silent peer: an idle connection within half a minute, with
    unacknowledged bytes within ten seconds. By default, the loss of a host stays unnoticed for hours.
    """
    link = connection._transport.get_extra_info("socket")
    if link is None or link.family == socket.AF_UNIX:
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):  # some systems lack some options
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
