"""The measurements. Each scenario sends loads to one server, new or warm, and returns named figures."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.bench.candidates import Server
from tests.bench.capacity import highest_passing
from tests.bench.database import Postgres
from tests.bench.load import Load, LoadResult, Times
from tests.bench.processes import cpu_seconds, metric, resident_bytes, wait_until_calm
from tests.bench.provider import FakeProvider

RATE = 50
OPENINGS = 50  # turns a second, each with two deltas
PROMPT_MS = 100.0
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """A server that is measured, and its environment."""

    server: Server
    provider: FakeProvider
    database: Postgres | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A measurement. `name` selects scenarios on the command line; several scenarios may share a name."""

    name: str
    title: str
    run: Callable[[Bench], Figures]
    only: str | None = None
    fresh_server: bool = False


class FaultError(Exception):
    """Raised if a delta was lost, repeated, out of order or from another chat, or if a chat failed, so that the figures
    are invalid.
    """


def warm_up(server: Server, mirror: Server | None = None) -> None:
    """Waits until both servers have loaded their lazy modules. The code of a provider costs a second of CPU, even on a
    server without turns.
    """
    server.run(Load("deltas=50 rate=100", chats=5, ramp_seconds=0.1, mirror_port=mirror.port if mirror else 0))
    for each in (server, mirror):
        if each is not None:
            wait_until_calm(each.process)


def paced(chats: int, deltas: int, ramp_seconds: float = 1.0) -> Load:
    return Load(f"deltas={deltas} rate={RATE}", chats=chats, ramp_seconds=ramp_seconds)


def faultless(result: LoadResult) -> LoadResult:
    if result.faults:
        raise FaultError(result.describe_faults())
    return result


def times(name: str, measured: Times | None) -> Figures:
    if measured is None:
        return {}
    return {f"{name} p50, ms": measured.p50, f"{name} p99, ms": measured.p99}


def measured(bench: Bench, load: Load) -> tuple[LoadResult, Figures]:
    """Runs a load to its end. The figures are CPU microseconds per delta."""
    server_before, database_before = cpu_seconds(bench.server.process), database_cpu(bench)
    result = faultless(bench.server.run(load))
    server = cpu_seconds(bench.server.process) - server_before
    figures = {"server CPU, µs per delta": server / result.deltas * 1e6}
    if bench.database and bench.database.postmaster:
        figures["database CPU, µs per delta"] = (database_cpu(bench) - database_before) / result.deltas * 1e6
    return result, figures


def database_cpu(bench: Bench) -> float:
    return bench.database.cpu_seconds() if bench.database else 0.0


class Ticks(NamedTuple):
    """The counters of a server's frame clock: the sum of its ticks in seconds, and their number."""

    seconds: float
    number: float

    def mean_since(self, before: "Ticks") -> float:
        return (self.seconds - before.seconds) / max(self.number - before.number, 1)


def ticks_of(server: Server) -> Ticks:
    name = "turnstream_frame_tick_seconds"
    return Ticks(metric(server.port, f"{name}_sum"), metric(server.port, f"{name}_count"))


def streams(chats: int, deltas: int) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        load, has_clock = paced(chats, deltas), bench.server.name == "turnstream"
        before = ticks_of(bench.server) if has_clock else None
        result, figures = measured(bench, load)
        figures |= times("added latency", result.delta)
        if before is not None:
            figures["of this the tick of the frame clock, mean, ms"] = ticks_of(bench.server).mean_since(before) * 1000
        figures |= times("first delta", result.first_delta)
        if result.postponed:  # the limit of concurrent requests made some clients wait as long as the server demanded
            figures["requests that were told to come again"] = result.postponed
        return figures | {"longer than planned, s": result.wall_seconds - load.ramp_seconds - deltas / RATE}

    return run


def unpaced(deltas: int) -> Callable[[Bench], Figures]:
    """Measures one stream at the highest speed."""

    def run(bench: Bench) -> Figures:
        result, figures = measured(bench, Load(f"deltas={deltas} rate=0"))
        return figures | {"delta events": result.delta_events}

    return run


def catch_up(deltas: int, replays: int) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        result = faultless(bench.server.run(Load(f"deltas={deltas} rate=0", replays=replays)))
        return times("catch-up", result.replay) | {"delta events": result.replay_events / replays}

    return run


def burst(chats: int) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        result, figures = measured(bench, Load(f"deltas=100 rate={RATE}", chats=chats, burst=True))
        server = {"server CPU, ms per turn": figures["server CPU, µs per delta"] * result.deltas / chats / 1000}
        return server | times("first delta", result.first_delta)

    return run


def openings(chats: int, *, single: bool = False) -> Callable[[Bench], Figures]:
    """Measures turns of two deltas: the cost of a turn without its text."""
    load = replace(paced(chats, 2, chats / OPENINGS), single=single)

    def run(bench: Bench) -> Figures:
        server_before, database_before = cpu_seconds(bench.server.process), database_cpu(bench)
        result = faultless(bench.server.run(load))
        figures = {"server CPU, ms per turn": (cpu_seconds(bench.server.process) - server_before) / chats * 1000}
        if bench.database and bench.database.postmaster:
            figures["database CPU, ms per turn"] = (database_cpu(bench) - database_before) / chats * 1000
        return figures | times("first delta", result.first_delta)

    return run


def capacity(probes: int) -> Callable[[Bench], Figures]:
    """Increases the number of streams until the 99th percentile of the added latency exceeds 100 ms.

    A number of streams must fail twice. On a shared machine, a single failure may be a disturbance, and must not end
    the search.
    """

    def run(bench: Bench) -> Figures:
        def passes(chats: int) -> bool:
            return keeps_up(bench, chats) or keeps_up(bench, chats)

        best = highest_passing(passes, start=150, ceiling=1500, probes=probes)
        return {"streams": best, "deltas per second": best * RATE}

    return run


def keeps_up(bench: Bench, chats: int) -> bool:
    ramp_seconds = chats / 100  # the clients arrive more slowly than in the scenario of a burst
    result = bench.server.run(paced(chats, int((ramp_seconds + 5) * RATE), ramp_seconds))
    wait_until_idle(bench.provider)
    steady = result.steady
    return not result.faults and steady is not None and result.steady_seconds >= 2 and steady.p99 < PROMPT_MS


def wait_until_idle(provider: FakeProvider, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while provider.stats().active and time.monotonic() < until:
        time.sleep(0.1)


def waiting(chats: int) -> Callable[[Bench], Figures]:
    """Measures the memory of open turns before their first delta."""

    def run(bench: Bench) -> Figures:
        grown, _ = memory_growth(bench, Load("deltas=10 rate=20 first=3000", chats=chats))
        return {"server memory, KiB per open turn": grown / chats}

    return run


def many_readers(readers: int) -> Callable[[Bench], Figures]:
    """Measures many readers of one turn: their memory before the first delta, and the latency of the deltas."""

    def run(bench: Bench) -> Figures:
        load = Load("deltas=20 rate=5 first=6000", ramp_seconds=2, readers=readers)
        grown, result = memory_growth(bench, load)
        return {"server memory, KiB per reader": grown / readers} | times("added latency", result.delta)

    return run


def memory_growth(bench: Bench, load: Load) -> tuple[float, LoadResult]:
    """Returns by how many KiB the server's memory has grown after all clients have connected."""
    before = resident_bytes(bench.server.process)
    with bench.server.start(load) as run:
        all_attached = run.wait_until_attached()
        time.sleep(0.5)  # until the server has finished the work for the last connection
        grown = resident_bytes(bench.server.process) - before
        result = faultless(run.result())
        assert all_attached
        return grown / 1024, result


def reconnects(chats: int, cuts: int) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        load = replace(paced(chats, 200), cuts=cuts, gap_ms=300)
        result, figures = measured(bench, load)
        if result.ended_204 != chats:
            raise FaultError(f"{chats - result.ended_204} of {chats} ended turns did not answer 204")
        return figures | times("rejoin", result.rejoin) | {"reconnects": result.resumes}

    return run


def full() -> list[Scenario]:
    return [
        Scenario("memory", "200 open turns that wait", waiting(200), fresh_server=True),
        Scenario("readers", "1,000 readers of one turn", many_readers(1000), only="turnstream", fresh_server=True),
        Scenario("streams", "1 stream of 50/s", streams(1, 150), fresh_server=True),
        Scenario("streams", "50 streams of 50/s", streams(50, 200)),
        Scenario("streams", "200 streams of 50/s", streams(200, 200)),
        Scenario("streams", "500 streams of 50/s", streams(500, 150)),
        Scenario("openings", "400 turns of 2 deltas, 50 a second", openings(400)),
        Scenario("openings", "the same, each with one request", openings(400, single=True)),
        Scenario("burst", "burst of 200 turns", burst(200)),
        Scenario("capacity", "most deltas/s, p99 under 100 ms", capacity(5)),
        Scenario("unpaced", "1 stream of 5,000 deltas, unpaced", unpaced(5000)),
        Scenario("catch-up", "catch-up of 5,000 deltas", catch_up(5000, 10), only="turnstream"),
        Scenario("reconnects", "100 streams, each cut 3 times", reconnects(100, 3), only="turnstream"),
    ]


def quick() -> list[Scenario]:
    return [
        Scenario("readers", "100 readers of one turn", many_readers(100), only="turnstream", fresh_server=True),
        Scenario("streams", "50 streams of 50/s", streams(50, 100), fresh_server=True),
        Scenario("streams", "200 streams of 50/s", streams(200, 100)),
        Scenario("openings", "100 turns of 2 deltas, 50 a second", openings(100)),
        Scenario("openings", "the same, each with one request", openings(100, single=True)),
        Scenario("burst", "burst of 50 turns", burst(50)),
        Scenario("catch-up", "catch-up of 5,000 deltas", catch_up(5000, 3), only="turnstream"),
        Scenario("reconnects", "20 streams, each cut 3 times", reconnects(20, 3), only="turnstream"),
    ]
