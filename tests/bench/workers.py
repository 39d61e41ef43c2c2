"""The CPU that replicas take beyond their own turns: at rest, and while one of them runs all turns."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tests.bench.candidates import Server
from tests.bench.load import Load
from tests.bench.processes import cpu_seconds, wait_until_calm
from tests.bench.scenarios import faultless, warm_up
from tests.bench.trials import Rows, Site

# Each stream has text in every interval of the journal.
_STREAMS, _RATE = 50, 10


def workers(counts: Sequence[int], seconds: int) -> Callable[[Site], Rows]:
    """Returns a trial with one column for each number of replicas."""

    def run(site: Site) -> Rows:
        found = [_measured(site, count, seconds) for count in counts]
        return {name: tuple(each.get(name) for each in found) for name in found[-1]}

    return run


def _measured(site: Site, count: int, seconds: int) -> dict[str, float]:
    with ExitStack() as stack:
        first, *others = [stack.enter_context(site.served(cpu=None)) for _ in range(count)]
        warm_up(first)
        for each in others:
            wait_until_calm(each.process)
        before = _used(site, first, others)
        time.sleep(seconds)
        rest = _per_second(before, _used(site, first, others), seconds, count)
        figures = {f"at rest: {name}": value for name, value in rest.items()}
        load = Load(f"deltas={_RATE * seconds} rate={_RATE}", chats=_STREAMS, ramp_seconds=0.5)
        before = _used(site, first, others)
        wall = faultless(first.run(load)).wall_seconds
        busy = _per_second(before, _used(site, first, others), wall, count)
        return figures | {f"{_STREAMS} streams of one replica: {name}": value for name, value in busy.items()}


def _used(site: Site, first: Server, others: Sequence[Server]) -> tuple[float, float, float]:
    return (
        cpu_seconds(first.process),
        sum(cpu_seconds(each.process) for each in others),
        site.database.cpu_seconds(),
    )


def _per_second(
    before: tuple[float, float, float], after: tuple[float, float, float], seconds: float, count: int
) -> dict[str, float]:
    first, others, database = (1000 * (end - start) / seconds for start, end in zip(before, after, strict=True))
    of_others = {"each other replica, ms/s": others / (count - 1)} if count > 1 else {}
    return {"this replica, ms/s": first} | of_others | {"Postgres, ms/s": database}
