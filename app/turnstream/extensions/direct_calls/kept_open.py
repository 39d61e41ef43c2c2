"""A connection that is kept open for the next call. A turn whose tools run calls its model again soon, perhaps after
the provider has closed the connection of the last call, or another turn has taken it from the pool.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from turnstream.libraries.providers.transport.failures import LOST

# Options of a call that tell connections of a pool apart.
_OF_CONNECTIONS = {"proxy", "proxy_auth", "proxy_headers", "server_hostname"}
Connect = Callable[[], Awaitable[aiohttp.connector.Connection]]

_LONGEST = 300.0  # seconds; a tool that runs for longer is not waited for
_CHECK = 5.0  # seconds between looks whether the provider has closed the connection


async def pooled_connection(
    session: aiohttp.ClientSession, method: str, options: Mapping[str, Any]
) -> aiohttp.connector.Connection:
    """Returns a connection for a call with these options, of the pool or a new one. Only the session itself is meant to
    make a ClientRequest: `tests/extensions/direct_calls/test_session.py` holds what this one does.
    """
    if session.connector is None:
        raise aiohttp.ClientConnectionError("The session has been closed.")
    request = aiohttp.ClientRequest(
        method,
        options["url"],
        session=session,
        loop=asyncio.get_running_loop(),
        **{name: options[name] for name in _OF_CONNECTIONS & options.keys()},
    )
    return await session.connector.connect(request, traces=[], timeout=options["timeout"])


@asynccontextmanager
async def kept_open(connect: Connect) -> AsyncIterator[None]:
    """Holds a connection, of the pool or a new one, until the block ends. It is then in the pool."""
    over = asyncio.Event()
    keeper = asyncio.create_task(_hold(connect, over))
    try:
        yield
        over.set()  # a connection that is being made is waited for: the next call would need as long for its own
    except BaseException:
        keeper.cancel()
        raise
    finally:
        await asyncio.gather(keeper, return_exceptions=True)


async def _hold(connect: Connect, over: asyncio.Event) -> None:
    with suppress(TimeoutError, *LOST):  # the call itself will meet the failure, and name it
        async with asyncio.timeout(_LONGEST):
            while not over.is_set():
                connection = await connect()
                try:
                    while not (over.is_set() or connection.closed):
                        with suppress(TimeoutError):
                            async with asyncio.timeout(_CHECK):
                                await over.wait()
                finally:
                    connection.release()
