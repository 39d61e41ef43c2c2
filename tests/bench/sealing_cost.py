"""The cost of encrypted texts: two servers side by side, of which one encrypts texts."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from statistics import median

from tests.bench.load import Load
from tests.bench.scenarios import faultless
from tests.bench.side_by_side import Side, Start, both_sides, cpu_of
from tests.bench.trials import Rows, Site

KEY = {"TURNSTREAM_MASTER_KEY": b64encode(bytes(range(32))).decode()}
STARTED: dict[bool, Start] = {
    True: lambda site: site.served({**KEY, "TURNSTREAM_ENCRYPT_TEXTS": "true"}),
    False: lambda site: site.served(KEY),
}
RATE = 10  # the load is low: near its limit a server saves CPU elsewhere, and the difference would not show
SECONDS = 10
RAMP_SECONDS = 8.0
CPU_TARGET = 1.08
CATCH_UP_TARGET = 1.5


def sealing_cost(turns: int, deltas: int, replays: int, rounds: int) -> Callable[[Site], Rows]:
    """Returns the medians over pairs of measurements. In each pair, both servers have the same load at the same
    time.
    """

    def run(site: Site) -> Rows:
        cpu, postgres, catch_up = (list[tuple[float, float]]() for _ in range(3))
        for number in range(rounds):
            with both_sides(site, STARTED, number % 2 == 0) as sides:
                used = cpu_of(sides, turns, RATE, SECONDS, RAMP_SECONDS)
                cpu.append((used[False].server / turns * 1000, used[True].server / turns * 1000))
                postgres.append((used[False].postgres / turns * 1000, used[True].postgres / turns * 1000))
                catch_up.append(_catch_up(sides, deltas, replays, first=number % 2 == 0))
        load = f"{turns} turns of {RATE}/s"
        return {
            f"{load}: CPU of the server per turn, ms": _row(cpu, CPU_TARGET),
            f"{load}: CPU of Postgres per turn, ms": _row(postgres, None),
            f"catch-up of {deltas:,} deltas, p50, ms": _row(catch_up, CATCH_UP_TARGET),
        }

    return run


def _row(pairs: list[tuple[float, float]], target: float | None) -> tuple[float | None, ...]:
    off, on = (median(each) for each in zip(*pairs, strict=True))
    return off, on, median(on / off for off, on in pairs if off), target


def _catch_up(sides: Mapping[bool, Side], deltas: int, replays: int, *, first: bool) -> tuple[float, float]:
    found = dict[bool, float]()
    for sealed in (first, not first):
        result = faultless(sides[sealed].server.run(Load(f"deltas={deltas} rate=0", replays=replays)))
        assert result.replay is not None
        found[sealed] = result.replay.p50
    return found[False], found[True]
