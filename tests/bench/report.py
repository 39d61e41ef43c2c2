"""Converts the figures of a run to tables, and inserts the tables into a page."""

import platform
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.bench.scenarios import Figures
from tests.bench.trials import Rows, Trial

PACKAGES = ("anthropic", "starlette", "sse-starlette", "uvicorn", "uvloop", "asyncpg")


@dataclass(frozen=True, slots=True)
class Row:
    scenario: str
    measure: str
    turnstream: float | None
    relay: float | None

    @property
    def ratio(self) -> float | None:
        if self.turnstream is None or not self.relay:
            return None
        return self.turnstream / self.relay


@dataclass(slots=True)
class Results:
    """All figures of all repetitions, in the order in which they first occur."""

    seen: dict[tuple[str, str], dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    waited_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, scenario: str, candidate: str, figures: Figures) -> None:
        for measure, value in figures.items():
            self.seen[scenario, measure][candidate].append(value)

    def note_disturbance(self, waited_seconds: float, cpu_seconds: float) -> None:
        self.waited_seconds += waited_seconds
        self.cpu_seconds += cpu_seconds

    def disturbance(self) -> float:
        """Returns how long the servers waited for a CPU, divided by their CPU time."""
        return self.waited_seconds / self.cpu_seconds if self.cpu_seconds else 0.0

    def rows(self) -> list[Row]:
        return [
            Row(scenario, measure, median(values["turnstream"]), median(values["relay"]))
            for (scenario, measure), values in self.seen.items()
        ]

    def repetitions(self) -> int:
        return max((len(each) for values in self.seen.values() for each in values.values()), default=0)


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def comparison(results: Results, postgres_version: str | None) -> str:
    head = "| | turnstream | bare relay | ratio |\n|---|---:|---:|---:|"
    disturbed = f"The servers waited {results.disturbance():.1%} of their CPU time for their CPU."
    words = (conditions(f"medians of {results.repetitions()}", postgres_version), disturbed)
    return "\n".join([" ".join(words), "", head, *table_lines(results.rows())])


def trial_tables(tables: Mapping[Trial, Rows], postgres_version: str | None, load_before: float) -> str:
    words = conditions(f"load average {load_before:.1f} before", postgres_version)
    return "\n".join([words, *(line for trial, rows in tables.items() for line in trial_lines(trial, rows))])


def trial_lines(trial: Trial, rows: Rows) -> Iterator[str]:
    yield f"\n| **{trial.name}**: {trial.title} | {' | '.join(trial.columns)} |"
    yield "|---|" + "---:|" * len(trial.columns)
    for measure, figures in rows.items():
        yield f"| {measure} | {' | '.join(map(shown, figures))} |"


def table_lines(rows: Iterable[Row]) -> Iterable[str]:
    scenario = ""
    for row in rows:
        if row.scenario != scenario:
            scenario = row.scenario
            yield f"| **{scenario}** | | | |"
        cells = (shown(row.turnstream), shown(row.relay), shown(row.ratio))
        yield f"| {row.measure} | {' | '.join(cells)} |"


def shown(value: float | None) -> str:
    if value is None:
        return "–"  # noqa: RUF001
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def conditions(how: str, postgres_version: str | None) -> str:
    packages = [f"{name} {version(name)}" for name in PACKAGES]
    database = [f"PostgreSQL {postgres_version}"] if postgres_version else []
    versions = ", ".join([f"Python {platform.python_version()}", *database, *packages])
    return f"{datetime.now(UTC).date().isoformat()}, {how}. {machine()}. {versions}."


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = models[0] if models else platform.machine()
    return f"{len(models) or '?'} CPUs ({name}), Linux {platform.release()}"


def write_into(page: Path, section: str, figures: str) -> None:
    """Replaces the text between the markers of the section."""
    start, end = f"<!-- {section}: start -->", f"<!-- {section}: end -->"
    before, rest = page.read_text().split(start)
    _, after = rest.split(end)
    page.write_text(f"{before}{start}\n{figures}\n{end}{after}")
