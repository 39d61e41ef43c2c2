"""The private parts of asyncpg that turnstream needs, because asyncpg has no public equivalent.
`tests/contracts/test_private_parts.py` tests how these parts behave; `pyproject.toml` restricts the version of asyncpg.
"""

import socket
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final

import asyncpg

# Options of a TCP socket: idle time and interval in seconds, a count of probes, and a timeout in milliseconds.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
# The descriptions of types, by the address of Postgres and the oids of the types. Statements use only one type that is
# not built into Postgres, the domain `owner_scope`.
_described: dict[tuple[object, frozenset[int]], Any] = {}
# Returned if the query for types did not run. After a query without a name, the driver would prepare its statement
# again.
_NOT_ASKED: Final = SimpleNamespace(name="not asked")


class DriverConnection(asyncpg.Connection):
    """Reuses the type descriptions that earlier connections have read, because the driver's query takes 15 ms."""

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float) -> Any:  # noqa: ASYNC109
        key = (self._addr, frozenset(typeoids))  # type: ignore[attr-defined]
        if key in _described:
            return _described[key], _NOT_ASKED
        types, asked = await super()._introspect_types(typeoids, timeout)  # type: ignore[misc]
        _described[key] = types
        return types, asked


def terminate(connection: Any) -> None:
    """Closes a connection immediately. If a statement has timed out, the driver has asked Postgres to cancel the
    statement, and this request continues after the close. Without the request, Postgres would keep the session as long
    as the statement waits for a lock, and could run out of connections.
    """
    connection._cancellations.clear()  # else the driver would abort these requests, which may take a statement's time
    connection.terminate()


def is_in_transaction(connection: Any) -> bool:
    # Only `_top_xact` shows a BEGIN that was cancelled or has failed. Such a BEGIN may still take effect: the next task
    # would then write in that transaction, and would lose its writes with the transaction.
    return connection.is_in_transaction() or connection._top_xact is not None


def keep_alive(connection: Any) -> None:
    """Lets the kernel close a TCP connection whose peer is silent: within half a minute if the connection is idle,
    within ten seconds if sent bytes are unacknowledged. By default, the kernel notices a lost host only after hours.
    """
    link = connection._transport.get_extra_info("socket")
    if link is None or link.family == socket.AF_UNIX:
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):  # some systems lack some options
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
