"""The CPU time of a server, predicted by a sum:

CPU = seconds * s + turns * a + frames * b + deltas * d + frames of further readers * c

A frame is one write to a reader. While the frame clock is idle, a frame usually has one delta. While the clock beats, a
frame has all deltas of a tick, and the streams share one wake-up for each beat. Then a second costs more and a frame
costs less, so `s` and `b` have two values each.

The number of measured loads equals the number of values; a setting fixes the clock for these loads. Two more loads
check the sum on a server with an automatic clock. Another load checks whether a simulation with these values has the
same CPU time and waiting times.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.bench.candidates import Server
from tests.bench.load import Load
from tests.bench.processes import cpu_seconds
from tests.bench.scenarios import OPENINGS, RATE, faultless, ticks_of, warm_up
from tests.bench.simulation import Cell, percentile
from tests.bench.sizing import Costs, Traffic
from tests.bench.trials import Rows, Site
from turnstream.engine.frame_clock import TICK

_SLOW = 10  # deltas a second
_COMING = 25  # turns per second in the load for the simulation
_SIMULATED = 120.0  # seconds

# The values of the sum with the factors for their display, in the order of the counts of a load.
_VALUES = {
    "s: a second with turns, ms": 1e3,
    "s: a second while the clock beats, ms": 1e3,
    "a: a turn, ms": 1e3,
    "b: a frame, µs": 1e6,
    "b: a frame while the clock beats, µs": 1e6,
    "d: a delta in a frame, µs": 1e6,
    "c: a frame to one more reader, µs": 1e6,
}


@dataclass(frozen=True, slots=True)
class Used:
    """The CPU seconds of a load, and the count that belongs to each value of the sum."""

    cpu: float
    counts: Sequence[float]


def costs(turns: int, streams: int, seconds: int, readers: int) -> Callable[[Site], Rows]:
    """Measures the costs. `turns` is the number of turns with two deltas. `streams` last `seconds`; other loads have
    twice as many streams, or a single stream. `readers` follow one stream. The checks have four times the streams for a
    third of the time, and slow streams.
    """
    short = Load(f"deltas=2 rate={RATE}", chats=turns, ramp_seconds=turns / OPENINGS)
    alone = Load(f"deltas={_SLOW * seconds} rate={_SLOW}")
    usual = Load(f"deltas={RATE * seconds} rate={RATE}", chats=streams)
    crowd = replace(usual, chats=2 * streams)
    dense = Load(f"deltas={4 * RATE * seconds} rate={4 * RATE}", chats=streams)
    followed = replace(usual, chats=1, readers=readers)
    many = Load(f"deltas={RATE * seconds // 3} rate={RATE}", chats=4 * streams)
    slow = replace(alone, chats=streams)
    coming = Load(f"deltas={RATE} rate={RATE}", chats=turns, ramp_seconds=turns / _COMING)

    def run(site: Site) -> Rows:
        with site.served({"TURNSTREAM_FRAMES": "cheap"}) as server:
            fixing = _used(server, short, alone, crowd, dense)
        with site.served({"TURNSTREAM_FRAMES": "calm"}) as server:
            fixing += _used(server, alone, usual, followed)
        values = solved([[*load.counts, load.cpu] for load in fixing])
        with site.served() as server:
            checks = _used(server, many, slow)
        rows: dict[str, tuple[float | None, ...]] = {}
        for (name, factor), value in zip(_VALUES.items(), values, strict=True):
            rows[name] = (value * factor, None, None)
        for load, check in zip((many, slow), checks, strict=True):
            predicted = sum(count * value for count, value in zip(check.counts, values, strict=True))
            rows[f"{load.chats} streams, {load.plan}: CPU s"] = (predicted, check.cpu, check.cpu / predicted)
        return {**rows, **_simulation_checked(site, coming, values)}

    return run


def _simulation_checked(site: Site, load: Load, values: Sequence[float]) -> Rows:
    """Compares the simulation with a server. Each turn has one second of text."""
    with site.served({"TURNSTREAM_FRAMES": "cheap"}) as server:
        warm_up(server)
        before = cpu_seconds(server.process)
        result = faultless(server.run(load))
        cpu = (cpu_seconds(server.process) - before) / load.chats
    _, second, turn, _, frame, delta, further = values
    measured = Costs(second=second, turn=turn, frame=frame, delta=delta, frame_of_further_reader=further)
    cell = Cell(Traffic(_COMING, deltas=RATE, rate=RATE, silence=0, blocks=1), measured, replicas=1, postgres_cores=1)
    waits = cell.run(_SIMULATED).waits()
    simulated_cpu = cell.replicas[0].cpu.busy / len(waits)
    assert result.opening is not None
    pairs = {
        "CPU of the server, ms": (simulated_cpu * 1e3, cpu * 1e3),
        "its model is called p50, ms": (percentile(waits, 0.5) * 1e3, result.opening.p50),
        "its model is called p99, ms": (percentile(waits, 0.99) * 1e3, result.opening.p99),
    }
    title = f"simulated: a turn of {load.chats}, {load.plan}, {_COMING} a second"
    return {f"{title}: {name}": (*pair, pair[1] / pair[0]) for name, pair in pairs.items()}


def _used(server: Server, *loads: Load) -> list[Used]:
    warm_up(server)
    return [_used_by(server, load) for load in loads]


def _used_by(server: Server, load: Load) -> Used:
    ticks, before = ticks_of(server), cpu_seconds(server.process)
    result = faultless(server.run(load))
    cpu = cpu_seconds(server.process) - before
    beating, own = ticks_of(server).mean_since(ticks) / TICK, load.chats / (load.chats + load.readers)
    clock, frames = (1 - beating, beating), result.delta_events * own
    seconds = (result.wall_seconds * share for share in clock)
    counts = (*seconds, load.chats, *(frames * share for share in clock), result.deltas * own)
    return Used(cpu, (*counts, result.delta_events * (1 - own)))


def solved(equations: Sequence[Sequence[float]]) -> list[float]:
    """Solves linear equations by Gauss-Jordan elimination. Each equation lists its coefficients, followed by the
    result.
    """
    rows = [list(each) for each in equations]
    for place in range(len(rows)):
        largest = max(range(place, len(rows)), key=lambda number: abs(rows[number][place]))
        rows[place], rows[largest] = rows[largest], rows[place]
        head = rows[place] = [value / rows[place][place] for value in rows[place]]
        for number, row in enumerate(rows):
            if number != place:
                rows[number] = [value - row[place] * first for value, first in zip(row, head, strict=True)]
    return [row[-1] for row in rows]
