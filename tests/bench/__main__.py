"""`python -m tests.bench`: turnstream and a bare relay in turn on one CPU, the tools on another."""

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import click
from rich.console import Console

from tests.bench.candidates import NAMES, Candidate, Name, relay, served, turnstream
from tests.bench.database import Postgres, bench_database
from tests.bench.native import ROOT, NoCompilerError
from tests.bench.processes import StartError, cpu_seconds, raise_file_limit, waited_seconds
from tests.bench.provider import FakeProvider, fake_provider
from tests.bench.report import Results, markdown, write_into
from tests.bench.scenarios import Bench, FaultError, Figures, Scenario, full, quick, warm_up

PAGE = ROOT / "docs" / "benchmarks.md"
console = Console(stderr=True, highlight=False)


@click.command()
@click.option("--quick", "is_quick", is_flag=True, help="One repetition of a small set: about a minute.")
@click.option("--repetitions", default=3, show_default=True)
@click.option("--minutes", default=15.0, show_default=True, help="No repetition starts that would pass this.")
@click.option("--only", type=click.Choice(NAMES), help="Measure one candidate alone.")
@click.option("--scenario", "pattern", default="", help="Only scenarios whose title contains this.")
@click.option("--write/--no-write", default=None, help=f"Put the table into {PAGE.name} (default: after a whole run).")
def main(is_quick: bool, repetitions: int, minutes: float, only: Name | None, pattern: str, write: bool | None) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop what was started, as after Ctrl-C
    raise_file_limit()
    scenarios = [each for each in (quick() if is_quick else full()) if pattern in each.title]
    whole = not (is_quick or only or pattern)
    try:
        faults, page = measure(scenarios, 1 if is_quick else repetitions, minutes * 60, only)
    except (NoCompilerError, StartError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(page)
    if whole if write is None else write:
        write_into(PAGE, page)
    if faults:
        raise click.ClickException("\n".join(faults))


def measure(scenarios: list[Scenario], repetitions: int, seconds: float, only: Name | None) -> tuple[list[str], str]:
    """Returns what went wrong, and the table."""
    with ExitStack() as owned:
        folder = Path(owned.enter_context(tempfile.TemporaryDirectory(prefix="turnstream-bench-")))
        provider = owned.enter_context(fake_provider(folder))
        database = owned.enter_context(nullcontext() if only == "relay" else bench_database(folder))
        candidates = [each for each in candidates_for(database) if only in {None, each.name}]
        run = Run(provider, database, folder)
        run.repeat(candidates, scenarios, repetitions, seconds)
        return run.faults, markdown(run.results, database.version if database else None)


def candidates_for(database: Postgres | None) -> list[Candidate]:
    return [relay()] if database is None else [turnstream(database.url), relay()]


class Run:
    def __init__(self, provider: FakeProvider, database: Postgres | None, folder: Path) -> None:
        self.results = Results()
        self.faults: list[str] = []
        self._provider = provider
        self._database = database
        self._folder = folder

    def repeat(self, candidates: list[Candidate], scenarios: list[Scenario], repetitions: int, seconds: float) -> None:
        """Candidates take turns, and the one that goes first changes: slow drift of the machine hits both."""
        started = time.monotonic()
        for repetition in range(repetitions):
            spent = time.monotonic() - started
            if spent * (repetition + 1) > seconds * max(repetition, 1):
                console.print(f"stopped after {repetition} repetitions: {spent:.0f} s are gone")
                return
            for candidate in candidates if repetition % 2 == 0 else reversed(candidates):
                try:
                    self._measure(candidate, scenarios)
                except StartError as error:
                    self._note_fault(str(error))

    def _measure(self, candidate: Candidate, scenarios: list[Scenario]) -> None:
        mine = [each for each in scenarios if each.only in {None, candidate.name}]
        for batch in batches(mine):
            with served(candidate, self._provider.url, self._folder) as server:
                database = self._database if candidate.name == "turnstream" else None
                warm_up(server)
                bench = Bench(server, self._provider, database)
                for scenario in batch:
                    self._run(scenario, bench)
                self.results.note_disturbance(waited_seconds(server.process), cpu_seconds(server.process))

    def _run(self, scenario: Scenario, bench: Bench) -> None:
        name = bench.server.name
        try:
            figures = scenario.run(bench)
        except FaultError as fault:
            self._note_fault(f"{name}, {scenario.title}: {fault}")
            return
        self.results.add(scenario.title, name, figures)
        console.print(f"{name}, {scenario.title}: {one_line(figures)}", soft_wrap=True)

    def _note_fault(self, fault: str) -> None:
        self.faults.append(fault)
        console.print(fault, style="red", markup=False, soft_wrap=True)


def batches(scenarios: list[Scenario]) -> Iterator[list[Scenario]]:
    """Scenarios that share a server."""
    batch: list[Scenario] = []
    for scenario in scenarios:
        if batch and scenario.fresh_server:
            yield batch
            batch = []
        batch.append(scenario)
    if batch:
        yield batch


def one_line(figures: Figures) -> str:
    return "; ".join(f"{measure} {value:.4g}" for measure, value in figures.items())


if __name__ == "__main__":
    main()
