"""How long a turn waits for a distant Postgres, as a number of round trips."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from urllib.parse import urlsplit

from tests.bench.load import Load
from tests.bench.processes import metric
from tests.bench.scenarios import faultless, warm_up
from tests.bench.trials import Rows, Site
from tests.integration.proxy import connect

WRITES = "turnstream_persist_seconds_sum"


def distant(turns: int, round_trip_ms: float) -> Callable[[Site], Rows]:
    """Runs turns one after another, each in a new chat, with a local Postgres and with a Postgres that is
    `round_trip_ms` away.
    """

    def run(site: Site) -> Rows:
        near = figures(site, turns)
        with late(site.database.url, round_trip_ms / 2000) as url:
            far = figures(replace(site, database=replace(site.database, url=url)), turns)
        return {name: (near[name], far[name], (far[name] - near[name]) / round_trip_ms) for name in near}

    return run


def figures(site: Site, turns: int) -> dict[str, float]:
    with site.served() as server:
        warm_up(server)
        before = metric(server.port, WRITES)
        result = faultless(server.run(Load("deltas=2 rate=50", chats=turns, ramp_seconds=turns * 0.5)))
        writes = metric(server.port, WRITES) - before
    assert result.opening is not None
    assert result.first_delta is not None
    return {
        "until the provider answers, p50, ms": result.opening.p50,
        "first delta, p50, ms": result.first_delta.p50,
        "writes of the run, mean, ms": writes / turns * 1000,
    }


@contextmanager
def late(url: str, seconds: float) -> Iterator[str]:
    """Yields an address of the same database. Data arrives `seconds` late in each direction."""
    loop = asyncio.new_event_loop()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await connect(url)
        with suppress(OSError):
            await asyncio.gather(pass_on(reader, back, seconds), pass_on(there, writer, seconds))

    async def begin() -> int:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        port = asyncio.run_coroutine_threadsafe(begin(), loop).result()
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        yield parts._replace(netloc=f"{user}@127.0.0.1:{port}", query="").geturl()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def write() -> None:
        data = b"-"
        while data:
            due, data = await pieces.get()
            await asyncio.sleep(due - loop.time())
            writer.write(data)
        writer.close()

    async def read() -> None:
        data = b"-"
        while data:
            data = await reader.read(65_536)
            pieces.put_nowait((loop.time() + seconds, data))

    await asyncio.gather(read(), write())
