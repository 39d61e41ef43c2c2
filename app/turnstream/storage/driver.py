"""Private parts of asyncpg, which has no public ones for them. `tests/contracts/test_private_parts.py` holds what they
do; `pyproject.toml` bounds the version.
"""

import socket
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final

import asyncpg

# Seconds, a count, and milliseconds.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
# Types that Postgres has described, by its address and their oids. Statements have one type that is not of Postgres
# itself, the domain `owner_scope`.
_described: dict[tuple[object, frozenset[int]], Any] = {}
# In place of the question, which would replace the statement that the driver has prepared before.
_NOT_ASKED: Final = SimpleNamespace(name="not asked")


class DriverConnection(asyncpg.Connection):
    """A connection that knows the types of all before it. The driver asks Postgres on each: three questions, 15 ms."""

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float) -> Any:  # noqa: ASYNC109
        key = (self._addr, frozenset(typeoids))  # type: ignore[attr-defined]
        if key in _described:
            return _described[key], _NOT_ASKED
        types, asked = await super()._introspect_types(typeoids, timeout)  # type: ignore[misc]
        _described[key] = types
        return types, asked


def terminate(connection: Any) -> None:
    """Closes it at once. If its statement had no answer in time, the driver has begun to ask Postgres to cancel it,
    and that continues: Postgres does not notice by itself that nobody waits any more, and keeps the session until it
    has the lock that the statement waits for. By then none of its connections may be left.
    """
    connection._cancellations.clear()  # the driver would end these tasks; they have the time of a statement
    connection.terminate()


def is_in_transaction(connection: Any) -> bool:
    # A BEGIN that was cancelled, or has failed, is in `_top_xact` alone. It may take effect all the same: what the next
    # task writes would be in that transaction, and lost with it.
    return connection.is_in_transaction() or connection._top_xact is not None


def keep_alive(connection: Any) -> None:
    """Lets the kernel end a connection over TCP whose other end is silent: an idle one within half a minute, one with
    unacknowledged bytes within ten seconds. Otherwise a host that has vanished is believed in for hours.
    """
    link = connection._transport.get_extra_info("socket")
    if link is None or link.family == socket.AF_UNIX:
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        if hasattr(socket, option):  # not every system has them all
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
