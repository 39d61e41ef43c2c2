"""The Grafana dashboard of all metrics, from the list of them: `python docs/deploy/make_dashboard.py` writes
grafana.json beside this file. Each metric is a panel, with its labels as series. Its title is the meaning of
the metric, its description has the name. The limit of its alarm is a line.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.metrics import MetricWrapperBase

from turnstream import telemetry
from turnstream.libraries import extension_metrics

FILE = Path(__file__).with_name("grafana.json")
# An alarm that compares what a panel shows: a gauge, or a quantile of a histogram. The others compare rates with rates.
_LIMIT = re.compile(
    r"(?:max(?: by \([\w, ]+\) )?\()?(turnstream_\w+)\)? (>|==) ([\d.]+)"
    r"|histogram_quantile\([\d.]+, sum by \(le\) \(rate\((turnstream_\w+)_bucket\[\w+\]\)\)\) (>) ([\d.]+)"
)
# Gauges that are 0 or 1, and counters whose unit is not events a second.
_STATES = frozenset({"turnstream_mcp_connected", "turnstream_model_breaker_open", "turnstream_build_info"})
_RATES = {
    "turnstream_tokens_total": "tokens/s",
    "turnstream_cost_total": "cost/s",
    "turnstream_http_requests_total": "reqps",
}
_RATE = "[$__rate_interval]"
_CHOSEN = '{instance=~"$instance"}'
# The replicas to choose from; the overview is of all.
_INSTANCES = {
    "name": "instance",
    "label": "replica",
    "type": "query",
    "datasource": {"type": "prometheus", "uid": "${datasource}"},
    "query": 'label_values(up{job="turnstream"}, instance)',
    "refresh": 2,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"text": ["All"], "value": ["$__all"]},
}
# The first row: the title, the metric that the query begins with, the query and its unit.
_OVERVIEW = (
    ("Replicas", "turnstream_replicas", "max(turnstream_replicas)", "short"),
    ("Turns a second", "turnstream_turns_total", f"sum(rate(turnstream_turns_total{_RATE}))", "ops"),
    (
        "Turns that fail",
        "turnstream_turns_total",
        (
            f'(sum(rate(turnstream_turns_total{{status="error"}}{_RATE})) or vector(0))'
            f" / sum(rate(turnstream_turns_total{_RATE}))"
        ),
        "percentunit",
    ),
    (
        "First text, 95 of 100",
        "turnstream_first_delta_seconds",
        f"histogram_quantile(0.95, sum by (le) (rate(turnstream_first_delta_seconds_bucket{_RATE})))",
        "s",
    ),
    (
        "Room that is used",
        "turnstream_turns_running",
        "sum(turnstream_turns_running) / sum(turnstream_turns_limit)",
        "percentunit",
    ),
    ("Oldest in the queue", "turnstream_oldest_queued_seconds", "max(turnstream_oldest_queued_seconds)", "s"),
    ("Turns in the queue", "turnstream_turns_queued", "max(turnstream_turns_queued)", "short"),
    ("Cost an hour", "turnstream_cost_total", f"3600 * sum(rate(turnstream_cost_total{_RATE}))", "short"),
)
_STAT_HEIGHT = 4
# The limit of a gauge that is a metric itself, in the same panel.
_LIMITED_BY = {"turnstream_turns_running": "turnstream_turns_limit"}
_WIDTH, _HEIGHT, _PER_ROW = 8, 7, 3
# The rows of the dashboard: their titles, and the beginnings of the names of their metrics. The first that fits counts.
_ROWS = {
    "Turns": ("turns", "rounds", "limits", "first_delta", "oldest_queued", "waits"),
    "Models and money": ("provider", "model", "tokens", "cost"),
    "Tools": ("tool", "mcp", "jobs", "overdue_job"),
    "Readers and HTTP": ("http", "streams", "stalled"),
    "Postgres": ("pool", "persist", "journal", "search", "standby"),
    "Webhooks, hooks and schedules": ("webhooks", "hook", "schedule"),
    "Process": ("",),
}


def metrics() -> Iterator[tuple[str, str, MetricWrapperBase]]:
    """The name in Prometheus, the type, and the metric."""
    for metric in (*vars(telemetry).values(), *vars(extension_metrics).values()):
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            yield (f"{family.name}_total" if family.type == "counter" else family.name), family.type, metric


def expressions(name: str, type: str, labels: tuple[str, ...]) -> list[tuple[str, str]]:
    """Queries of a panel, each with its legend."""
    by = ", ".join(labels)
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    match type:
        case "counter":
            return [(f"sum by ({by}) (rate({name}{_CHOSEN}{_RATE}))", legend or "a second")]
        case "histogram":
            sums = f"sum by ({', '.join((*labels, 'le'))}) (rate({name}_bucket{_CHOSEN}{_RATE}))"
            return [(f"histogram_quantile({q}, {sums})", f"p{q * 100:g} {legend}".strip()) for q in (0.5, 0.95)]
        case _:
            series = [(f"{name}{_CHOSEN}", f"{{{{instance}}}} {legend}".strip())]
            if limit := _LIMITED_BY.get(name):
                series.append((f"{limit}{_CHOSEN}", "limit of {{instance}}"))
            return series


def limits() -> dict[str, tuple[str, float]]:
    """The metrics with an alarm: its comparison and its limit."""
    rules = yaml.safe_load(FILE.with_name("alerts.yml").read_text(encoding="utf-8"))
    found = {}
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        if match := _LIMIT.fullmatch(rule["expr"].strip()):
            name, comparison, limit = [part for part in match.groups() if part]
            found[name] = (comparison, float(limit))
    return found


def _thresholds(comparison: str, limit: float) -> dict[str, Any]:
    """A value of 0 that raises an alarm is bad by being low."""
    steps = [(None, "red"), (1, "green")] if (comparison, limit) == ("==", 0) else [(None, "green"), (limit, "red")]
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]}


def title_of(metric: MetricWrapperBase) -> str:
    """The meaning of a metric, without what follows a comma or a colon."""
    return re.split(r"[,;:]", metric._documentation)[0]


def unit_of(name: str, type: str) -> str:
    """The unit in Grafana's words. A counter is shown as a rate."""
    if "_seconds" in name:
        return "s"
    if type != "counter":
        return "bool" if name in _STATES else "short"
    return _RATES.get(name, "ops")


def dashboard() -> dict[str, Any]:
    rows: dict[str, list[tuple[str, str, MetricWrapperBase]]] = {title: [] for title in _ROWS}
    for name, type, metric in metrics():
        bare = name.removeprefix("turnstream_")
        rows[next(title for title, starts in _ROWS.items() if bare.startswith(starts))].append((name, type, metric))
    alarms = limits()
    panels, y = _overview(alarms), 1 + _STAT_HEIGHT
    for title, found in rows.items():
        panels.append(_row(title, y))
        y += 1
        for place, (name, type, metric) in enumerate(found):
            position = {"x": place % _PER_ROW * _WIDTH, "y": y + place // _PER_ROW * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(name, type, metric, position, alarms.get(name)))
        y += -(-len(found) // _PER_ROW) * _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "title": "turnstream",
        "uid": "turnstream",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}, _INSTANCES]},
        "panels": panels,
    }


def _overview(alarms: dict[str, tuple[str, float]]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = [_row("Overview", 0)]
    width = 24 // len(_OVERVIEW)
    for place, (title, name, query, unit) in enumerate(_OVERVIEW):
        defaults: dict[str, Any] = {"unit": unit, "min": 0}
        if name in alarms:
            defaults["thresholds"] = _thresholds(*alarms[name])
        panels.append(
            {
                "type": "stat",
                "title": title,
                "description": f"{name}: {title}",
                "gridPos": {"x": place * width, "y": 1, "w": width, "h": _STAT_HEIGHT},
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "fieldConfig": {"defaults": defaults, "overrides": []},
                "targets": [{"refId": "A", "expr": query, "legendFormat": title}],
            }
        )
    return panels


def _row(title: str, y: int) -> dict[str, Any]:
    return {"type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []}


def _panel(
    name: str, type: str, metric: MetricWrapperBase, position: dict[str, int], alarm: tuple[str, float] | None
) -> dict[str, Any]:
    queries = expressions(name, type, tuple(metric._labelnames))
    defaults: dict[str, Any] = {"unit": unit_of(name, type), "min": 0}
    if alarm:
        defaults |= {"thresholds": _thresholds(*alarm), "custom": {"thresholdsStyle": {"mode": "line"}}}
    return {
        "type": "timeseries",
        "title": title_of(metric),
        "description": f"{name}: {metric._documentation}",
        "gridPos": position,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend}
            for place, (expression, legend) in enumerate(queries)
        ],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
