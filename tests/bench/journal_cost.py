"""What the journal costs: two servers side by side on one CPU, of which one never writes it.

Measured one after the other they would differ by more than the journal costs, for reasons of the machine. And they run
calm: near its limit a server saves elsewhere what the journal takes (app/engine/frame_clock.py), which would hide it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from tests.bench.candidates import Server
from tests.bench.database import Postgres, new_database
from tests.bench.load import Load
from tests.bench.processes import cpu_seconds
from tests.bench.scenarios import RATE, faultless, warm_up
from tests.bench.trials import Rows, Site

NEVER = {"TURNSTREAM_JOURNAL_INTERVAL": "3600"}
CALM_RATE = 10  # a delta for every tick of the journal: it writes as many rows as at any higher rate
SECONDS = 8
TARGET = 5.0  # per cent of the server's CPU


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds."""

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


def journal_cost(turns: int, rounds: int) -> Callable[[Site], Rows]:
    def run(site: Site) -> Rows:
        journaled, silent, busy = Cpu(), Cpu(), Cpu()
        for number in range(rounds):
            with both_sides(site, number % 2 == 0) as sides:
                calm = cpu_of(sides, turns, CALM_RATE)
                journaled, silent = journaled + calm[True], silent + calm[False]
                busy += cpu_of({True: sides[True]}, turns, RATE)[True]
        per_turn_second = 1000 / (turns * SECONDS * rounds)
        cost = journaled - silent
        calm_words, busy_words = (f"{turns} turns of {rate}/s" for rate in (CALM_RATE, RATE))
        table = {
            f"{calm_words}: server": (journaled.server, silent.server, cost.server, TARGET),
            f"{busy_words}: server": (busy.server, None, cost.server, TARGET),
            f"{calm_words}: Postgres": (journaled.postgres, silent.postgres, cost.postgres, None),
            f"{busy_words}: Postgres": (busy.postgres, None, cost.postgres, None),
        }
        return {name: row(*figures, per_turn_second) for name, figures in table.items() if figures[0]}

    return run


def row(
    journaled: float, silent: float | None, cost: float, target: float | None, scale: float
) -> tuple[float | None, ...]:
    return journaled * scale, silent and silent * scale, cost * scale, cost / journaled * 100, target


@contextmanager
def both_sides(site: Site, first_journals: bool) -> Iterator[Mapping[bool, Side]]:
    """By whether it journals: each on a database of its own, so that neither takes the other's turns."""
    with (
        new_database(site.database.url) as database,
        site.served(None if first_journals else NEVER) as first,
        replace(site, database=database).served(NEVER if first_journals else None) as second,
    ):
        warm_up(first)
        warm_up(second)
        yield {first_journals: Side(first, site.database), not first_journals: Side(second, database)}


def cpu_of(sides: Mapping[bool, Side], turns: int, rate: int) -> Mapping[bool, Cpu]:
    """What the load costs each side; all of them carry it at the same time."""
    load = Load(f"deltas={rate * SECONDS} rate={rate}", chats=turns)
    before = {journals: side.used() for journals, side in sides.items()}
    with ExitStack() as stack:
        for run in [stack.enter_context(side.server.start(load)) for side in sides.values()]:
            faultless(run.result())
    return {journals: side.used() - before[journals] for journals, side in sides.items()}
