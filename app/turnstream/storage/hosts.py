"""Opens connections to a Postgres on one host, or on several hosts of which one is the primary."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import asyncpg

from turnstream.storage.driver import DriverConnection, keep_alive

# Seconds after which the next host is tried in parallel.
_PATIENCE = 1.0

# Statements depend on these settings of a session, for which a server, a database or a role may have other defaults.
# The settings are sent after the connection is open, because PgBouncer refuses them as start parameters.
SESSION_SETTINGS: Final = {
    "default_transaction_isolation": "read committed",  # a claim reads the latest commits after its wait for a lock
    "row_security": "on",  # if off, Postgres refuses each statement that a policy would filter
    "TimeZone": "UTC",  # for times that statements convert to text, and for the periods of budgets
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",  # a lower value rounds the numbers of an archive
    "bytea_output": "hex",
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
}
_SET: Final = "; ".join(f"SET {name} TO '{value}'" for name, value in SESSION_SETTINGS.items())


async def open_connection(url: str, *, timeout: float, **options: Any) -> Any:  # noqa: ASYNC109, the driver's name for it
    """Returns a connection of the driver to the first host in `url` that answers and has the role in
    `target_session_attrs`. A silent host, for example after a power failure, does not delay the other hosts; the driver
    alone would wait for it until `timeout` (seconds). Raises the driver's errors, and TimeoutError with a text.
    """
    waiting = list(_urls_of_hosts(url))
    tries: list[asyncio.Task[Any]] = []
    chosen: asyncio.Task[Any] | None = None
    try:
        while waiting or not all(each.done() for each in tries):
            if waiting:
                tries.append(asyncio.create_task(_connect(waiting.pop(0), timeout, options)))
            under_way = [each for each in tries if not each.done()]
            patience = _PATIENCE if waiting else None
            done, _ = await asyncio.wait(under_way, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            chosen = next((each for each in done if each.exception() is None), None)
            if chosen is not None:
                break
        return (chosen or tries[-1]).result()
    finally:
        for each in tries:
            if each is not chosen:
                _give_up(each)


async def _connect(url: str, seconds: float, options: Mapping[str, Any]) -> Any:
    try:
        connection = await asyncpg.connect(url, timeout=seconds, connection_class=DriverConnection, **options)
        keep_alive(connection)
        try:
            await connection.execute(_SET, timeout=seconds)
        except BaseException:
            connection.terminate()
            raise
        return connection
    except TimeoutError as error:
        raise TimeoutError(f"it does not answer within {seconds:g} seconds") from error


def _give_up(connecting: asyncio.Task[Any]) -> None:
    if not connecting.done():
        connecting.cancel()
    elif not connecting.cancelled() and connecting.exception() is None:
        connecting.result().terminate()


def _urls_of_hosts(url: str) -> Sequence[str]:
    """Returns a URL for each host in `url`. Hosts are before its path; directories of sockets are in its query."""
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    user, at, address = parts.netloc.rpartition("@")
    hosts, ports = query.get("host", address).split(","), query.get("port", "").split(",")
    # With these options `url` is not divided: the driver validates the ports, or finds a standby among all hosts.
    of_driver = len(ports) not in {1, len(hosts)} or query.get("target_session_attrs") == "prefer-standby"
    if len(hosts) == 1 or of_driver:
        return [url]
    ports = ports if len(ports) > 1 else ports * len(hosts)
    urls = []
    for host, port in zip(hosts, ports, strict=True):
        place = {"host": host} if "host" in query else {}
        netloc = parts.netloc if place else f"{user}{at}{host}"
        own = {**query, **place, **({"port": port} if port else {})}
        urls.append(parts._replace(netloc=netloc, query=urlencode(own)).geturl())
    return urls
