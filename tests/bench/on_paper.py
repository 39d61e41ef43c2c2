"""`python -m tests.bench.on_paper TURNS` prints the calculated needs of TURNS turns a minute, and simulates such a
cell: under normal load, at the death of a replica, and during an outage of Postgres.
"""

from collections.abc import Iterator, Sequence

import click

from tests.bench.simulation import REPLACED, Cell, percentile
from tests.bench.sizing import Costs, Needs, Traffic, needs

SETTLED = 60.0  # seconds of simulated time until an empty cell has its normal load
AFTER = 60.0
GB = 1e9


@click.command()
@click.argument("turns", type=float)
@click.option("--away", default=20.0, show_default=True, help="Seconds that Postgres is away.")
def main(turns: float, away: float) -> None:
    """Prints the needs of TURNS turns a minute, of the usual kind."""
    traffic, costs = Traffic(turns / 60), Costs()
    needed = needs(traffic, costs)
    click.echo(" | ".join(cells(turns, needed)))
    for line in simulated(traffic, costs, needed, away):
        click.echo(line)


def cells(turns: float, needed: Needs) -> Iterator[str]:
    """Returns a row of docs/capacity.md."""
    whole = (turns, needed.running, needed.replicas, needed.postgres_cores, needed.connections)
    yield from (f"{number:,.0f}" for number in whole)
    yield from (f"{number / GB:,.1f}" for number in (needed.wal, needed.kept))


def simulated(traffic: Traffic, costs: Costs, needed: Needs, away: float) -> Iterator[str]:
    def settled(noticed: float = 0.0) -> Cell:
        cell = Cell(traffic, costs, needed.replicas, needed.postgres_cores, noticed=noticed)
        cell.run(SETTLED)
        return cell

    cell = settled()
    cpu = max(replica.cpu.busy for replica in cell.replicas) / SETTLED
    postgres = cell.postgres.busy / SETTLED / needed.postgres_cores
    yield f"calm, with {cpu:.0%} of a replica's CPU and {postgres:.0%} of Postgres': {shown(cell.outcome.waits())}"
    for sign, noticed in (("its session ends", 1.0), ("its lease expires", 10.0)):
        cell = settled(noticed)
        cell.simulation.start(cell.death())
        outcome = cell.run(AFTER)
        yield f"a replica dies, {sign}: {len(outcome.taken_over)} turns go on {shown(sorted(outcome.taken_over))}"
        yield f"  turns that are new until it is replaced: {shown(outcome.waits(SETTLED, SETTLED + REPLACED))}"
    cell = settled()
    cell.postgres.stop(away)
    back = SETTLED + away
    late = [asked_at - back for asked_at, wait in cell.run(away + AFTER).begun if asked_at > back and wait > 1]
    yield f"Postgres is away for {away:g} s: new turns wait for more than 1 s until {max(late, default=0):.0f} s later"


def shown(waits: Sequence[float]) -> str:
    """Formats percentiles of `waits`, which are in ascending order."""
    return f"after {percentile(waits, 0.5) * 1e3:,.0f} ms (median), {percentile(waits, 0.99) * 1e3:,.0f} ms (p99)"


if __name__ == "__main__":
    main()
