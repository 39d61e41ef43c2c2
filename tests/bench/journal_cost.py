"""The cost of the journal: two servers side by side, of which one has no journal.

The load is low: near its limit a server saves CPU in other places (turnstream.engine.frame_clock), so the difference
would not show.
"""

from collections.abc import Callable

from tests.bench.scenarios import RATE
from tests.bench.side_by_side import Cpu, Start, both_sides, cpu_of
from tests.bench.trials import Rows, Site

NEVER = {"TURNSTREAM_JOURNAL_INTERVAL": "3600"}
STARTED: dict[bool, Start] = {True: lambda site: site.served(), False: lambda site: site.served(NEVER)}
CALM_RATE = 10  # one delta for every tick of the journal, which causes the most rows
SECONDS = 8
TARGET = 5.0  # per cent of the server's CPU


def journal_cost(turns: int, rounds: int) -> Callable[[Site], Rows]:
    def run(site: Site) -> Rows:
        journaled, silent, busy = Cpu(), Cpu(), Cpu()
        for number in range(rounds):
            with both_sides(site, STARTED, number % 2 == 0) as sides:
                calm = cpu_of(sides, turns, CALM_RATE, SECONDS)
                journaled, silent = journaled + calm[True], silent + calm[False]
                busy += cpu_of({True: sides[True]}, turns, RATE, SECONDS)[True]
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
