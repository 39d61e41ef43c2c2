"""The simulation agrees with queueing theory, with the formulas of costs, and with what the death of a replica
causes.
"""

import random
from math import factorial
from pathlib import Path

import pytest

from tests.bench.on_paper import cells
from tests.bench.simulation import Cell, Cores, Process, Simulation
from tests.bench.sizing import Costs, Traffic, needs, work_of

PAGE = Path(__file__).parents[2] / "docs" / "capacity.md"


@pytest.mark.parametrize("cores", [1, 4])
def test_a_queue_waits_as_long_as_theory_says(cores: int) -> None:
    """The case is an M/M/c queue at four fifths of its capacity (Erlang C)."""
    simulation, chance, arrivals, waits = Simulation(), random.Random(7), 0.8 * cores, []
    queue = Cores(simulation, cores)

    def arrive() -> Process:
        while True:
            yield chance.expovariate(arrivals)
            work = chance.expovariate(1.0)
            waits.append(queue.work(work) - work)

    simulation.start(arrive())
    simulation.run(100_000 / arrivals)
    last = arrivals**cores / factorial(cores) / (1 - 0.8)
    has_to_wait = last / (sum(arrivals**number / factorial(number) for number in range(cores)) + last)
    assert sum(waits) / len(waits) == pytest.approx(has_to_wait / (cores - arrivals), rel=0.1)
    assert queue.busy / cores == pytest.approx(0.8 * simulation.now, rel=0.02)


def test_a_calm_cell_uses_what_the_sum_says() -> None:
    traffic, costs = Traffic(turns=20.0), Costs()
    cell = Cell(traffic, costs, replicas=4, postgres_cores=2)
    cell.run(60)
    before = sum(replica.cpu.busy for replica in cell.replicas), cell.postgres.busy
    cell.run(200)
    used, postgres = sum(replica.cpu.busy for replica in cell.replicas) - before[0], cell.postgres.busy - before[1]
    work = work_of(traffic, costs)
    of_turns = traffic.turns * (work.turn + traffic.text_seconds * work.text_second)
    assert used / 200 == pytest.approx(of_turns + 4 * costs.second, rel=0.05)
    of_turns = traffic.turns * (work.postgres_turn + traffic.text_seconds * work.postgres_second)
    assert postgres / 200 == pytest.approx(of_turns, rel=0.05)


def test_the_turns_of_a_dead_replica_continue_after_its_detection() -> None:
    traffic = Traffic(turns=20.0)
    cell = Cell(traffic, Costs(), replicas=4, postgres_cores=2, noticed=10.0)
    cell.run(60)
    of_the_dead = cell.replicas[0].streaming
    cell.simulation.start(cell.death())
    outcome = cell.run(60)
    assert len(outcome.taken_over) >= of_the_dead > 0
    assert 10.0 < min(outcome.taken_over) <= max(outcome.taken_over) < 15.0
    assert len(outcome.begun) - outcome.ended < 2 * traffic.running


def test_turns_wait_while_postgres_is_away_and_are_caught_up_with() -> None:
    cell = Cell(Traffic(turns=20.0), Costs(), replicas=4, postgres_cores=2)
    cell.run(30)
    cell.postgres.stop(20)
    outcome = cell.run(60)
    assert 19 < outcome.waits(30, 50)[-1] < 21
    assert outcome.waits(60)[-1] < 0.2


def test_the_page_has_what_the_sums_say() -> None:
    page = PAGE.read_text()
    for turns in (60, 600, 6_000, 60_000):
        assert f"| {' | '.join(cells(turns, needs(Traffic(turns / 60), Costs())))} |" in page
