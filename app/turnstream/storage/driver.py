"""Private parts of asyncpg, which has no public ones for them. `tests/contracts/test_private_parts.py` holds what they
do; `pyproject.toml` bounds the version.
"""

import socket
from typing import Any


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


def socket_of(connection: Any) -> socket.socket | None:
    link: socket.socket | None = connection._transport.get_extra_info("socket")
    return link
