"""The extra latency of a reader on another replica than the replica that runs the turn: one tick of the journal and one
tick of the mirror.
"""

from collections.abc import Callable
from dataclasses import replace

from tests.bench.processes import TOOLS_CPU, metric
from tests.bench.scenarios import FaultError, faultless, paced, warm_up
from tests.bench.trials import SELDOM, Rows, Site

TARGET_MS = 100.0 + 20  # one tick, and some tolerance


def remote(chats: int, deltas: int) -> Callable[[Site], Rows]:
    def run(site: Site) -> Rows:
        with site.served() as owner, site.served(SELDOM, cpu=TOOLS_CPU) as other:
            warm_up(owner, mirror=other)
            result = faultless(owner.run(replace(paced(chats, deltas), mirror_port=other.port)))
            if ran := metric(other.port, "turnstream_turns_total"):
                raise FaultError(f"{ran:.0f} turns ran on the replica that should only read them")
        assert result.delta is not None
        assert result.mirror is not None
        here, there = result.delta, result.mirror
        return {
            "added latency p50, ms": (here.p50, there.p50, there.p50 - here.p50, TARGET_MS),
            "added latency p99, ms": (here.p99, there.p99, there.p99 - here.p99, None),
        }

    return run
