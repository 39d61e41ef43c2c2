"""`python -m tests.bench` measures with several servers first, and then compares turnstream with a bare relay, each
alone on one CPU.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from tests.bench.candidates import NAMES, Candidate, relay, served, turnstream
from tests.bench.database import Postgres, bench_database
from tests.bench.native import ROOT, NoCompilerError
from tests.bench.processes import StartError, cpu_seconds, raise_file_limit, waited_seconds
from tests.bench.programme import Programme, quick_set, whole
from tests.bench.provider import FakeProvider, fake_provider
from tests.bench.report import Results, comparison, trial_tables, write_into
from tests.bench.scenarios import Bench, Figures, Scenario, warm_up
from tests.bench.trials import Rows, Site, Trial

PAGE = ROOT / "tests" / "bench" / "README.md"
console = Console(stderr=True, highlight=False)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(whole().names()), metavar="[NAME]...")
@click.option("--quick", "is_quick", is_flag=True, help="One repetition of a small set: about two minutes.")
@click.option("--repetitions", default=3, show_default=True, help="Of what is compared with the relay.")
@click.option("--minutes", default=15.0, show_default=True, help="No repetition starts that would pass this.")
@click.option("--only", type=click.Choice(NAMES), help="Measure one candidate alone.")
@click.option("--write/--no-write", default=None, help=f"Put the tables into {PAGE.name} (default: after a whole run).")
def main(
    names: tuple[str, ...], is_quick: bool, repetitions: int, minutes: float, only: str | None, write: bool | None
) -> None:
    """NAME selects the measurements; by default all run. Beside a relay: memory, readers, streams, openings, burst,
    capacity, unpaced, catch-up, reconnects. With several servers: recovery, start, remote, distant, journal, traces,
    sealing, replicas. Others: cache (a provider that bills), chats (long chats), large (a database of a million turns),
    hostile (attacks beside calm streams), overload (arrivals above capacity), and costs and storage (what a turn
    takes).
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops all child processes, as Ctrl-C does
    raise_file_limit()
    programme = quick_set() if is_quick else whole()
    if names:
        programme = programme.only(names)
    if only == "relay":
        programme = replace(programme, trials=())
    try:
        faults, pages = measure(programme, 1 if is_quick else repetitions, minutes * 60, only)
    except (NoCompilerError, StartError) as error:
        raise click.ClickException(str(error)) from error
    for section, page in pages.items():
        click.echo(page)
        if write or (write is None and not (is_quick or only or names)):
            write_into(PAGE, section, page)
    if faults:
        raise click.ClickException("\n".join(faults))


def measure(
    programme: Programme, repetitions: int, seconds: float, only: str | None
) -> tuple[list[str], dict[str, str]]:
    """Returns the faults, and each table by the section of its page."""
    until, load_before = time.monotonic() + seconds, os.getloadavg()[0]
    with ExitStack() as owned:
        folder = Path(owned.enter_context(tempfile.TemporaryDirectory(prefix="turnstream-bench-")))
        provider = owned.enter_context(fake_provider(folder))
        database = owned.enter_context(nullcontext() if only == "relay" else bench_database(folder))
        run = Run(provider, database, folder)
        candidates = [each for each in candidates_for(database) if only in {None, each.name}]
        try:
            if database is not None:
                run.try_all(programme.trials, Site(provider, database, folder))
            if programme.scenarios:
                run.repeat(candidates, programme.scenarios, repetitions, until)
        except KeyboardInterrupt:
            run.note_fault("interrupted: the tables have what was measured until then")
        return run.faults, run.pages(load_before)


def candidates_for(database: Postgres | None) -> list[Candidate]:
    return [relay()] if database is None else [turnstream(database.url), relay()]


class Run:
    """One run of measurements. A failed measurement is added to `faults` and has no figures; the figures of the others
    stay.
    """

    def __init__(self, provider: FakeProvider, database: Postgres | None, folder: Path) -> None:
        self.results = Results()
        self.tables: dict[Trial, Rows] = {}
        self.faults: list[str] = []
        self._provider = provider
        self._database = database
        self._folder = folder

    def pages(self, load_before: float) -> dict[str, str]:
        version = self._database.version if self._database else None
        compared = {"figures": comparison(self.results, version)} if self.results.seen else {}
        tried = {"trials": trial_tables(self.tables, version, load_before)} if self.tables else {}
        return compared | tried

    def try_all(self, trials: Iterable[Trial], site: Site) -> None:
        for trial in trials:
            try:
                rows = trial.run(site)
            except Exception as fault:  # noqa: BLE001
                self.note_fault(f"{trial.name}: {fault!r}")
                continue
            self.tables[trial] = rows
            for measure, figures in rows.items():
                shown = " / ".join("–" if figure is None else f"{figure:.4g}" for figure in figures)  # noqa: RUF001
                console.print(f"{trial.name}, {measure}: {shown}", soft_wrap=True)

    def repeat(
        self, candidates: list[Candidate], scenarios: Iterable[Scenario], repetitions: int, until: float
    ) -> None:
        """Runs the scenarios repeatedly. Each repetition reverses the order of the candidates, so that a slow drift of
        the machine affects both candidates.
        """
        started = time.monotonic()
        for repetition in range(repetitions):
            now = time.monotonic()
            if repetition and now + (now - started) / repetition > until:
                console.print(f"stopped after {repetition} repetitions: the time is over")
                return
            for candidate in candidates if repetition % 2 == 0 else reversed(candidates):
                try:
                    self._measure(candidate, scenarios)
                except Exception as fault:  # noqa: BLE001, its server does not start, or has died
                    self.note_fault(f"{candidate.name}: {fault!r}")

    def _measure(self, candidate: Candidate, scenarios: Iterable[Scenario]) -> None:
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
        except Exception as fault:  # noqa: BLE001
            self.note_fault(f"{name}, {scenario.title}: {fault!r}")
            return
        self.results.add(scenario.title, name, figures)
        console.print(f"{name}, {scenario.title}: {one_line(figures)}", soft_wrap=True)

    def note_fault(self, fault: str) -> None:
        self.faults.append(fault)
        console.print(fault, style="red", markup=False, soft_wrap=True)


def batches(scenarios: list[Scenario]) -> Iterator[list[Scenario]]:
    """Groups scenarios that share a server."""
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
