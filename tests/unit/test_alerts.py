"""Alarms, dashboard and runbooks name metrics and pages that exist. promtool tests the rules."""

import json
import re
import runpy
import subprocess
from pathlib import Path

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
    runbooks = re.findall(r"runbook: docs/runbooks\.md#(\S+)", ALERTS)
    assert len(runbooks) == len(alarms)
    assert set(runbooks) <= headings


def test_the_dashboard_is_what_its_script_makes_of_the_metrics() -> None:
    made = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    assert made == MAKE["dashboard"](), "run docs/deploy/make_dashboard.py"
    titles = {panel["title"] for panel in made["panels"]}
    assert {name for name, _, _ in MAKE["metrics"]()} <= titles


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
        "turnstream_turns_running",
    }
    panels = {panel["title"]: panel for panel in MAKE["dashboard"]()["panels"]}

    def steps(title: str) -> list[tuple[float | None, str]]:
        found = panels[title]["fieldConfig"]["defaults"]["thresholds"]["steps"]
        return [(step["value"], step["color"]) for step in found]

    assert steps("turnstream_oldest_queued_seconds") == [(None, "green"), (30, "red")]
    assert steps("turnstream_first_delta_seconds") == [(None, "green"), (10, "red")]
    assert steps("turnstream_mcp_connected") == [(None, "red"), (1, "green")]
    assert "thresholds" not in panels["turnstream_turns_total"]["fieldConfig"]["defaults"]


def test_no_label_is_a_word_of_a_client() -> None:
    """A label has the values of a table, a list of the operator's, or a set in the code."""
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
