"""Private parts of asyncpg, which has no public ones for them. `tests/contracts/test_private_parts.py` holds what they
do; `pyproject.toml` bounds the version.
"""

import socket
from typing import Any, Final

# Seconds, a count, and milliseconds.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
# Arrays and their elements, by fixed oids. The driver would ask Postgres for each new set of them.
_ARRAYS = {"bool": (1000, 16), "bytea": (1001, 17), "int8": (1016, 20), "int4": (1007, 23), "json": (199, 114)}
_ARRAYS |= {"float8": (1022, 701), "timestamptz": (1185, 1184), "numeric": (1231, 1700), "uuid": (2951, 2950)}
_ARRAY = {"ns": "pg_catalog", "elemdelim": ",", "attrtypoids": None, "basetype": None, "range_subtype": None}
_TYPES = [{**_ARRAY, "name": f"_{name}", "oid": oid, "elemtype": of} for name, (oid, of) in _ARRAYS.items()]


def know_arrays(connection: Any) -> None:
    """A new connection encodes and decodes these types without a question to Postgres."""
    connection._protocol.get_settings().register_data_types(_TYPES)


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
