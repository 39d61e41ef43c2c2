"""The alerts, the dashboard and the runbooks name metrics and pages that exist. promtool tests the rules."""

import json
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import path_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs/deploy"
ALERTS = (DEPLOY / "alerts.yml").read_text(encoding="utf-8")
MAKE = runpy.run_path(str(DEPLOY / "make_dashboard.py"))


@pytest.mark.needs("promtool")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
        pytest.param(("test", "rules", "alerts-test.yml"), marks=pytest.mark.full),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_rules_and_their_tests(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([path_of("promtool"), *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alarm_is_tested_and_names_metrics_and_a_runbook_that_exist() -> None:
    tests = (DEPLOY / "alerts-test.yml").read_text(encoding="utf-8")
    alarms = re.findall(r"- alert: (\w+)", ALERTS)
    assert [name for name in alarms if f'"{name}"' not in tests] == []
    series = {f"{name}{end}" for name, _, _ in MAKE["metrics"]() for end in ("", "_bucket", "_count")}
    assert sorted(set(re.findall(r"\bturnstream_\w+", ALERTS + tests)) - series) == []
    page = (ROOT / "docs/runbooks.md").read_text(encoding="utf-8")
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.*)$", page, re.MULTILINE)}
    runbooks = re.findall(r'runbook_url: "\{\{ \$externalLabels\.docs_url \}\}/docs/runbooks\.html#([\w-]+)"', ALERTS)
    assert len(runbooks) == len(alarms)
    assert set(runbooks) <= headings


def test_the_dashboard_equals_the_output_of_its_script() -> None:
    made = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    assert made == MAKE["dashboard"](), "run docs/deploy/make_dashboard.py"
    assert {name for name, _, _ in MAKE["metrics"]()} == panels_of(made).keys()


def panels_of(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the panels of a dashboard by their metrics. The overview is left out."""
    panels = [panel for panel in board["panels"] if panel["type"] == "timeseries"]
    return {panel["description"].partition(":")[0]: panel for panel in panels}


def test_each_panel_has_a_title_in_words_a_unit_and_a_place_in_a_row_of_its_own() -> None:
    made = MAKE["dashboard"]()
    panels = panels_of(made)
    titles = [panel["title"] for panel in panels.values()]
    assert [title for title in titles if not re.fullmatch(r"[A-Z1][^_]{2,79}", title)] == []
    assert len(titles) == len(set(titles))
    for name, type, metric in MAKE["metrics"]():
        found = panels[name]
        unit = found["fieldConfig"]["defaults"]["unit"]
        assert (unit == "s") == ("_seconds" in name), name
        assert unit.endswith(("ops", "/s", "reqps")) == (type == "counter"), name
        assert all(target["legendFormat"] for target in found["targets"]), name
        assert all(
            f"{{{{{label}}}}}" in target["legendFormat"] for target in found["targets"] for label in metric._labelnames
        )
    below: dict[str, list[str]] = {}
    places, row = [], ""
    for panel in made["panels"]:
        place = panel["gridPos"]
        if panel["type"] == "row":
            row = panel["title"]
        else:
            below.setdefault(row, []).append(panel["title"])
            assert place["x"] + place["w"] <= 24
        places.append((place["x"], place["y"]))
    assert len(places) == len(set(places))
    assert min(map(len, below.values())) >= 3
    assert len(below) == sum(panel["type"] == "row" for panel in made["panels"])


def test_the_panels_below_the_overview_show_the_chosen_replicas() -> None:
    made = MAKE["dashboard"]()
    assert [variable["name"] for variable in made["templating"]["list"]] == ["datasource", "instance"]
    for name, panel in panels_of(made).items():
        for target in panel["targets"]:
            series = re.findall(r"\bturnstream_\w+(\{[^}]*\})?", target["expr"])
            assert series == ['{instance=~"$instance"}'], name


def test_the_first_row_is_an_overview_of_known_metrics() -> None:
    made = MAKE["dashboard"]()
    first = [panel for panel in made["panels"] if panel["type"] == "stat"]
    assert made["panels"][1 : 1 + len(first)] == first
    known = {name for name, _, _ in MAKE["metrics"]()}
    for panel in first:
        (target,) = panel["targets"]
        series = {re.sub("_bucket$", "", name) for name in re.findall(r"\bturnstream_\w+", target["expr"])}
        assert panel["description"].partition(":")[0] in series
        assert series <= known
    queue = next(panel for panel in first if panel["title"] == "Oldest in the queue")
    assert [step["value"] for step in queue["fieldConfig"]["defaults"]["thresholds"]["steps"]] == [None, 30]


def test_a_panel_shows_the_limit_of_its_alarm() -> None:
    assert MAKE["limits"]().keys() == {
        "turnstream_first_delta_seconds",
        "turnstream_journal_lag_seconds",
        "turnstream_mcp_connected",
        "turnstream_model_breaker_open",
        "turnstream_oldest_queued_seconds",
        "turnstream_oldest_transaction_seconds",
        "turnstream_overdue_job_seconds",
        "turnstream_search_lag_seconds",
    }
    panels = panels_of(MAKE["dashboard"]())
    assert [target["expr"] for target in panels["turnstream_turns_running"]["targets"]] == [
        'turnstream_turns_running{instance=~"$instance"}',
        'turnstream_turns_limit{instance=~"$instance"}',
    ]

    def steps(title: str) -> list[tuple[float | None, str]]:
        found = panels[title]["fieldConfig"]["defaults"]["thresholds"]["steps"]
        return [(step["value"], step["color"]) for step in found]

    assert steps("turnstream_oldest_queued_seconds") == [(None, "green"), (30, "red")]
    assert steps("turnstream_first_delta_seconds") == [(None, "green"), (10, "red")]
    assert steps("turnstream_mcp_connected") == [(None, "red"), (1, "green")]
    assert "thresholds" not in panels["turnstream_turns_total"]["fieldConfig"]["defaults"]


def test_no_label_is_a_word_of_a_client() -> None:
    """The values of a label come from a table, from a list of the operator, or from a set in the code."""
    of_operators = {"tool", "server", "provider", "model", "hook", "guard"}
    of_the_code = {
        "state",
        "status",
        "stop_reason",
        "outcome",
        "delivery",
        "limit",
        "policy",
        "kind",
        "reason",
        "type",
        "operation",
        "where",
    }
    of_the_code |= {"generation", "call", "pool", "version", "python", "place", "ruling"}
    labels = {label for _, _, metric in MAKE["metrics"]() for label in metric._labelnames}
    assert labels <= of_operators | of_the_code
