"""Two servers side by side on one CPU, of which one has the feature that is measured.

If the servers were measured one after the other, the variation of the machine itself would exceed the cost of the
feature.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

from tests.bench.candidates import Server
from tests.bench.database import Postgres, new_database
from tests.bench.load import Load
from tests.bench.processes import cpu_seconds
from tests.bench.scenarios import faultless, warm_up
from tests.bench.trials import Site

Start = Callable[[Site], AbstractContextManager[Server]]


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU time in seconds."""

    server: float = 0.0
    postgres: float = 0.0

    def __add__(self, other: "Cpu") -> "Cpu":
        return Cpu(self.server + other.server, self.postgres + other.postgres)

    def __sub__(self, other: "Cpu") -> "Cpu":
        return Cpu(self.server - other.server, self.postgres - other.postgres)


@dataclass(frozen=True, slots=True)
class Side:
    server: Server
    database: Postgres

    def used(self) -> Cpu:
        return Cpu(cpu_seconds(self.server.process), self.database.backend_seconds())


@contextmanager
def both_sides(site: Site, started: Mapping[bool, Start], first: bool) -> Iterator[Mapping[bool, Side]]:
    """Yields the side with the feature (True) and the side without it. Each side has its own database, because two
    servers on one database run each other's turns. The `first` side starts first.
    """
    with (
        new_database(site.database.url) as database,
        started[first](site) as one,
        started[not first](replace(site, database=database)) as other,
    ):
        warm_up(one)
        warm_up(other)
        yield {first: Side(one, site.database), not first: Side(other, database)}


def cpu_of(
    sides: Mapping[bool, Side], turns: int, rate: int, seconds: int, ramp_seconds: float = 1.0
) -> Mapping[bool, Cpu]:
    """Returns the CPU time that the load costs on each side. All sides have the load at the same time."""
    load = Load(f"deltas={rate * seconds} rate={rate}", chats=turns, ramp_seconds=ramp_seconds)
    before = {does_it: side.used() for does_it, side in sides.items()}
    with ExitStack() as stack:
        for run in [stack.enter_context(side.server.start(load)) for side in sides.values()]:
            faultless(run.result())
    return {does_it: side.used() - before[does_it] for does_it, side in sides.items()}
