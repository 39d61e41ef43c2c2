"""A load above the capacity of one server, on one server and on two servers: the gain from the second CPU, and the cost
of sharing the load.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import asyncpg

from tests.bench.candidates import Server
from tests.bench.load import Load, LoadResult, Times
from tests.bench.scenarios import RATE, faultless, paced, warm_up
from tests.bench.trials import Rows, Site

RUNNING = """
    SELECT blocks.text, replicas.address FROM turns
    JOIN replicas ON replicas.id = turns.replica
    JOIN blocks ON blocks.turn_id = turns.parent_id
    WHERE turns.status = 'running'
"""


def replicas(chats: int, deltas: int) -> Callable[[Site], Rows]:
    def run(site: Site) -> Rows:
        load = replace(paced(chats, deltas), limit_seconds=120)
        with site.served() as server:
            warm_up(server)
            alone = faultless(server.run(load))
        with site.served(cpu=None) as first, site.served(cpu=None) as second:
            warm_up(first)
            warm_up(second)
            both, elsewhere = run_on_both(site, first, second, replace(load, second_port=second.port))
        planned = load.ramp_seconds + deltas / RATE
        return {
            "turns that failed": (alone.failed, both.failed),
            **pair("added latency", alone.delta, both.delta),
            **pair("first delta", alone.first_delta, both.first_delta),
            "longer than planned, s": (alone.wall_seconds - planned, both.wall_seconds - planned),
            "turns that run on the other replica than their reader's, %": (None, elsewhere),
        }

    return run


def pair(name: str, alone: Times | None, both: Times | None) -> Rows:
    assert alone is not None
    assert both is not None
    return {f"{name} p50, ms": (alone.p50, both.p50), f"{name} p99, ms": (alone.p99, both.p99)}


def run_on_both(site: Site, first: Server, second: Server, load: Load) -> tuple[LoadResult, float]:
    with first.start(load) as run:
        run.wait_until_attached()
        elsewhere = asyncio.run(share_elsewhere(site.database.url, (first.port, second.port)))
        return faultless(run.result()), elsewhere * 100


async def share_elsewhere(url: str, ports: tuple[int, int]) -> float:
    """Returns the share of turns that run on another server than the server of their reader. The last digits of the
    message give the port of the reader's server.
    """
    connection = await asyncpg.connect(url, timeout=30, command_timeout=60)
    try:
        rows = await connection.fetch(RUNNING)
    finally:
        await connection.close()
    away = [not address.endswith(f":{ports[int(message[-3:], 36) % 2]}") for message, address in rows]
    return sum(away) / max(len(away), 1)
