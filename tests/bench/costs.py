"""What turns, deltas and readers cost: CPU = turns * a + deltas * b + deltas of further readers * c.

a and b are of two loads, short turns and long ones, c of many readers of one turn; a fourth load checks the sum.
"""

from collections.abc import Callable

from tests.bench.candidates import Server
from tests.bench.load import Load
from tests.bench.processes import cpu_seconds
from tests.bench.scenarios import OPENINGS, RATE, faultless, paced, warm_up
from tests.bench.trials import Rows, Site

_SHORT = 2  # deltas


def costs(turns: int, streams: int, deltas: int, readers: int) -> Callable[[Site], Rows]:
    """`turns` short ones; `streams` of `deltas`; `readers` of one more of these; at last four times the streams, of a
    third of the deltas.
    """

    def run(site: Site) -> Rows:
        with site.served() as server:
            warm_up(server)
            short = _cpu(server, paced(turns, _SHORT, turns / OPENINGS)) / turns
            long = _cpu(server, paced(streams, deltas)) / streams
            b = (long - short) / (deltas - _SHORT)
            a = short - _SHORT * b
            followed = _cpu(server, Load(f"deltas={deltas} rate={RATE}", readers=readers))
            c = (followed - a - deltas * b) / (readers * deltas)
            many, few = 4 * streams, deltas // 3
            seen, fitted = _cpu(server, paced(many, few)), many * (a + few * b)
        return {
            "a: a turn, ms": (a * 1e3, None, None),
            "b: a delta, µs": (b * 1e6, None, None),
            "c: a delta to one more reader, µs": (c * 1e6, None, None),
            f"{many} streams of {few} deltas, CPU s": (fitted, seen, seen / fitted),
        }

    return run


def _cpu(server: Server, load: Load) -> float:
    before = cpu_seconds(server.process)
    faultless(server.run(load))
    return cpu_seconds(server.process) - before
