"""A proxy for Postgres that can cut connections, swallow their traffic, or lead to another Postgres."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, urlsplit


class Proxy:
    """Relays connections. New connections lead to the Postgres in `target`."""

    def __init__(self, url: str) -> None:
        self.target = url
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        """Opens the proxy. Returns a URL that leads to the same database through the proxy."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        parts = urlsplit(self.target)
        user = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{user}@127.0.0.1:{port}", query="").geturl()

    def cut(self) -> None:
        """Cuts every connection, and refuses new connections."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for relay in self._relays:
            relay.cancel()

    def swallow(self) -> None:
        """Keeps old and new connections open, but nothing passes before `heal`."""
        self._passing.clear()

    def heal(self) -> None:
        """Lets traffic pass again, including the traffic that was swallowed."""
        self._passing.set()

    def forget(self) -> None:
        """Swallows traffic on the present connections, which stay open. New connections work."""
        self.swallow()
        self._passing = asyncio.Event()
        self.heal()

    async def closed(self) -> None:
        """Closes the proxy, after the traffic that was in transit at the cut."""
        await asyncio.gather(*self._relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.current_task()
        assert relay is not None
        self._relays.add(relay)
        if self._server is None or not self._server.is_serving():  # the cut came between the connection and this task
            writer.transport.abort()
            return
        passing = self._passing
        try:
            there, back = await connect(self.target)
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        self._writers |= {writer, back}
        await asyncio.gather(_pump(reader, back, passing), _pump(there, writer, passing))


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[str, Proxy]]:
    proxy = Proxy(url)
    try:
        yield await proxy.open(), proxy
    finally:
        proxy.cut()
        await proxy.closed()


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a raw connection to the Postgres of `url`."""
    parts = urlsplit(url)
    folder = parse_qs(parts.query).get("host")
    if folder:
        return await asyncio.open_unix_connection(f"{folder[0]}/.s.PGSQL.{parts.port or 5432}")
    return await asyncio.open_connection(parts.hostname, parts.port or 5432)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            await passing.wait()
            writer.write(data)
            await writer.drain()
    await passing.wait()
    writer.close()
