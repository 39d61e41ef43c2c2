"""The scoreboard: converts `docs/benchmarks/scoreboard.json` to a table in `docs/benchmarks.md`, and to charts.

`python -m tests.bench.board` writes the table and the charts; a test compares them with the data.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from tests.bench.native import ROOT
from tests.bench.report import shown, write_into

FOLDER: Final = ROOT / "docs/benchmarks"
DATA: Final = FOLDER / "scoreboard.json"
PAGE: Final = ROOT / "docs/benchmarks.md"
_WAITED: Final = "waited for its CPU, %"
CHARTS: Final = {
    "cpu-of-a-turn": "CPU of a turn, ms",
    "cpu-of-a-delta": "CPU of a delta, 50 streams, µs",
    "memory": "memory of an idle stream, KiB",
}
ROWS: Final = (
    "first delta, p50, ms",
    "first delta, p99, ms",
    "CPU of a turn, ms",
    "CPU of its database, ms",
    "CPU of a delta, 50 streams, µs",
    "CPU of a delta, 200 streams, µs",
    "added latency, 50 streams, p99, ms",
    "streams of a core",
    "memory of an idle server, MB",
    "memory of an idle stream, KiB",
    "whole after a cut, %",
    "turns that are whole after kill -9, %",
    "text that no reader gets, %",
    "until readers get new text, s",
    _WAITED,
)
# The latencies of a server are omitted if its waits for the CPU exceed this percentage of its CPU time.
MOST_WAITED: Final = 20.0
_LATENCIES: Final = ("first delta", "added latency", "until readers", "streams of a core")
_BAR, _ROOM, _LABEL, _LINE = 340, 90, 190, 26


def write_board() -> None:
    result = json.loads(DATA.read_text(encoding="utf-8"))
    write_into(PAGE, "scoreboard", table(result))
    for name, measure in CHARTS.items():
        (FOLDER / f"{name}.svg").write_text(chart(measure, medians(result, measure)), encoding="utf-8")


def medians(result: Mapping[str, Any], measure: str) -> dict[str, float | None]:
    return {each["name"]: median_of(each["figures"], measure) for each in result["contestants"]}


def median_of(figures: Mapping[str, list[float]], measure: str) -> float | None:
    disturbed = figures.get(_WAITED, [0.0])[0] > MOST_WAITED
    if disturbed and measure.startswith(_LATENCIES):
        return None
    return figures[measure][0] if measure in figures else None


def table(result: Mapping[str, Any]) -> str:
    names = [each["name"] for each in result["contestants"]]
    lines = [
        f"{result['date']}, medians; repetitions: {result['repetitions']}. {result['machine']}.",
        "",
        f"| | {' | '.join(names)} |",
        "|---|" + "---:|" * len(names),
    ]
    for measure in ROWS:
        values = medians(result, measure).values()
        if any(value is not None for value in values):
            lines.append(f"| {measure} | {' | '.join(map(shown, values))} |")
    lines.append("")
    for each in result["contestants"]:
        versions = ", ".join(f"{name} {pin}" for name, pin in each["versions"].items())
        failed = ", ".join(fault.partition(": ")[0] for fault in each["faults"])
        end = f" It failed under: {failed}." if failed else ""
        lines.append(f"- **{each['name']}**: {each['configuration']}. {versions}.{end}")
    return "\n".join(lines)


def chart(title: str, values: Mapping[str, float | None]) -> str:
    """Draws horizontal bars, one for each server that has the figure."""
    present = {name: value for name, value in values.items() if value is not None}
    return svg(
        title, [(name, value, value / (max(present.values(), default=0) or 1)) for name, value in present.items()]
    )


def svg(title: str, bars: Sequence[tuple[str, float, float]]) -> str:
    width, height = _LABEL + _BAR + _ROOM, _LINE * (len(bars) + 1) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<style>text { font: 13px sans-serif }</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="18" style="font-weight: bold">{escape(title)}</text>',
    ]
    for number, (name, value, share) in enumerate(bars, 1):
        y, length = number * _LINE + 4, max(2, round(share * _BAR))
        color = "#2563eb" if name == "turnstream" else "#94a3b8"
        lines += [
            f'<text x="{_LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LABEL}" y="{y}" width="{length}" height="18" fill="{color}"/>',
            f'<text x="{_LABEL + length + 6}" y="{y + 14}">{shown(value)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    write_board()
