"""Keeps a connection open for the next model call. A turn that runs tools soon calls its model again, but by then the
provider may have closed the previous connection, or another turn may have taken it from the pool.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from turnstream.libraries.providers.transport.failures import LOST

# The options of a call that decide which connections of a pool it can use.
_OF_CONNECTIONS = {"proxy", "proxy_auth", "proxy_headers", "server_hostname"}
Connect = Callable[[], Awaitable[aiohttp.connector.Connection]]

_LONGEST = 300.0  # seconds; if a tool runs longer, the connection is released
_CHECK = 5.0  # seconds between two checks whether the provider has closed the connection


async def pooled_connection(
    session: aiohttp.ClientSession, method: str, options: Mapping[str, Any]
) -> aiohttp.connector.Connection:
    """Returns a connection for a call with these options, either from the pool or new. Officially, only the session
    makes a ClientRequest, so these steps are copied: `tests/extensions/direct_calls/test_session.py` checks them.
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
    """Holds a connection, from the pool or new, until the block ends. Then the connection returns to the pool."""
    over = asyncio.Event()
    keeper = asyncio.create_task(_hold(connect, over))
    try:
        yield
        over.set()  # waits for a connection attempt: the next call would wait as long for its own
    except BaseException:
        keeper.cancel()
        raise
    finally:
        await asyncio.gather(keeper, return_exceptions=True)


async def _hold(connect: Connect, over: asyncio.Event) -> None:
    with suppress(TimeoutError, *LOST):  # the next call itself will raise the failure
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
