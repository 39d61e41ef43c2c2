"""Two healthy replicas for the duration of a soak: clients connect and disconnect; chats are created, read and deleted.

No process dies here, so no turn may run twice, even on a loaded machine. Every chat is deleted, so neither the servers
nor the tables may grow.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median
from time import monotonic

import asyncpg
import psutil

from tests.faults.postgres import own_postgres
from tests.support.http_client import Client, said, turn_url
from tests.support.reading import Reader
from tests.support.server_process import Server

CLIENTS = 6
PAUSE = 1.0  # maximum seconds between two visits of a client
SAMPLE_EVERY = 5.0  # seconds
SETTLED = 1 / 3  # the share of the samples that come before caches are full and vacuum has settled
GROWTH = 0.1  # maximum growth of a server's memory over the other samples, as a share
BLOAT = 1.5  # maximum bytes of a table, as a multiple of the bytes of its rows
SLACK = 2_000_000  # bytes that a table may grow by in any case
_SETTINGS = {"TURNSTREAM_DEMO_DELAY": "0.01", "TURNSTREAM_LEASE": "10", "TURNSTREAM_POLL_INTERVAL": "1"}

# When a turn is handed back, no recovery is charged, but the attempt is raised.
_NOTE_SECOND_RUNS = """
    CREATE TABLE second_runs (turn uuid);
    CREATE FUNCTION note_second_run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO second_runs VALUES (NEW.id);
        RETURN NEW;
    END $$;
    CREATE TRIGGER second_runs AFTER UPDATE OF attempt ON turns FOR EACH ROW
        WHEN (OLD.attempt > 0) EXECUTE FUNCTION note_second_run();
"""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a table with its indexes. `dead` counts the rows that vacuum has not removed yet."""

    bytes: int
    rows: int
    dead: int


@dataclass(slots=True)
class Measured:
    """The samples of a run. `memory` has the resident bytes of each server, with their times in seconds. `tables` has
    the sizes of each table.
    """

    visits: int = 0
    second_runs: int = 0
    seconds: list[float] = field(default_factory=list)
    memory: dict[int, list[int]] = field(default_factory=dict)
    tables: dict[str, list[Size]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def violations(self) -> Iterator[str]:
        yield from self.problems
        if self.second_runs:
            yield f"{self.second_runs} turns ran again, though nothing died"
        for port, samples in self.memory.items():
            if (growth := self._growth(samples)) > GROWTH * median(samples):
                yield f"the server at {port} has grown by {growth / 1e6:.1f} MB"
        for name, sizes in self.tables.items():
            early, late = sizes[self._settled], sizes[-1]
            if late.bytes > SLACK + early.bytes * max(1.0, late.rows / max(1, early.rows)) * BLOAT:
                yield f"the table {name} went from {early} to {late}"

    def report(self) -> Iterator[str]:
        yield f"churn: {self.visits} chats made, read by two readers and deleted; {self.second_runs} turns ran twice"
        for port, samples in self.memory.items():
            low, high = min(samples[self._settled :]), max(samples[self._settled :])
            growth = f"{self._growth(samples) / 1e6:+.1f} MB by the slope"
            yield f"memory of the server at {port}: {low / 1e6:.1f} to {high / 1e6:.1f} MB once settled, {growth}"
        early, late = (sum(sizes[at].bytes for sizes in self.tables.values()) for at in (self._settled, -1))
        dead = sum(sizes[-1].dead for sizes in self.tables.values())
        yield f"tables: {early / 1e6:.1f} MB once settled, {late / 1e6:.1f} MB at the end, {dead} dead rows"
        for name, sizes in sorted(self.tables.items(), key=lambda table: -table[1][-1].bytes)[:5]:
            yield f"  {name}: {sizes[self._settled]} to {sizes[-1]}"

    @property
    def _settled(self) -> int:
        return int(len(self.seconds) * SETTLED)

    def _growth(self, samples: Sequence[int]) -> float:
        """Returns the growth in bytes, from the slope of the samples after the server has settled."""
        seconds, samples = self.seconds[self._settled :], samples[self._settled :]
        return linear_regression(seconds, samples).slope * (seconds[-1] - seconds[0])


async def churn(folder: Path, until: float) -> Measured:
    """Runs the clients until `until`, a time of `monotonic`. Each client makes at least one visit."""
    measured = Measured()
    async with own_postgres(folder) as postgres:
        servers = [Server(postgres.url, folder, _SETTINGS) for _ in range(2)]
        try:
            for server in servers:
                await server.start()
            connection = await asyncpg.connect(postgres.url)
            await connection.execute(_NOTE_SECOND_RUNS)
            async with asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(_visit_until(until, [server.url for server in servers], measured))
                while monotonic() < until:
                    await asyncio.sleep(SAMPLE_EVERY)
                    await _sample(servers, connection, measured)
            measured.second_runs = await connection.fetchval("SELECT count(*) FROM second_runs")
            await connection.close()
        finally:
            for server in servers:
                await server.close()
    return measured


async def _visit_until(until: float, urls: Sequence[str], measured: Measured) -> None:
    while not measured.visits or monotonic() < until:
        one, other = random.sample(urls, 2)
        async with Client(one) as near, Client(other) as far:
            try:
                await _visit(near, far)
            except (AssertionError, ExceptionGroup) as error:
                measured.problems.append(repr(error))
        measured.visits += 1
        await asyncio.sleep(random.uniform(0, PAUSE))


async def _visit(near: Client, far: Client) -> None:
    turn = (await near.json("POST", "/api/turns", 201, json=said(f"/long {random.randint(5, 150)}")))["assistant_turn"]
    url = turn_url(turn)
    readers = [Reader(client, f"{url}/stream", cut_after=random.choice([None, 3, 20])) for client in (near, far)]
    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.follow())
        if random.random() < 0.1:
            await far.request("POST", f"{url}/cancel")
    stored = await far.json("GET", url)
    for reader in readers:
        reader.check_whole(stored)
    await near.json("DELETE", f"/api/chats/{turn['chat_id']}", 200)


async def _sample(
    servers: Sequence[Server], connection: "asyncpg.Connection[asyncpg.Record]", measured: Measured
) -> None:
    measured.seconds.append(monotonic())
    for server in servers:
        measured.memory.setdefault(server.port, []).append(psutil.Process(server.pid).memory_info().rss)
    for name, size in (await _sizes(connection)).items():
        measured.tables.setdefault(name, []).append(size)


async def _sizes(connection: "asyncpg.Connection[asyncpg.Record]") -> Mapping[str, Size]:
    found = await connection.fetch(
        "SELECT relname, pg_total_relation_size(relid) AS bytes, n_dead_tup AS dead FROM pg_stat_user_tables"
    )
    return {
        row["relname"]: Size(
            row["bytes"], await connection.fetchval(f'SELECT count(*) FROM "{row["relname"]}"'), row["dead"]
        )
        for row in found
    }
