"""A service that executes the effects of tools. It counts the requests of each idempotency key, and outlives every
server.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Effects:
    """The server of effects. A request is a line with a key. The effect of a key happens once: later requests get the
    answer of the first request.
    """

    def __init__(self) -> None:
        self.port = 0
        self.requests = Counter[str]()
        self.runners: dict[str, str] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if line := (await reader.readline()).decode():
                key, runner = line.split()
                self.requests[key] += 1
                writer.write(f"{self.runners.setdefault(key, runner)}\n".encode())
                await writer.drain()
        except ConnectionError:  # the server was killed, and its connection broke
            pass
        finally:
            writer.close()


@asynccontextmanager
async def effects_service() -> AsyncIterator[Effects]:
    effects = Effects()
    server = await asyncio.start_server(effects.serve, "127.0.0.1", 0)
    effects.port = server.sockets[0].getsockname()[1]
    try:
        yield effects
    finally:
        server.close()
        await server.wait_closed()


async def take_effect(port: int, key: str, runner: str) -> str:
    """Requests the effect of the key, and returns which process caused it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{key} {runner}\n".encode())
        return (await reader.readline()).decode().strip()
    finally:
        writer.close()
