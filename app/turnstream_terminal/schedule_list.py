"""Schedules and triggers at the prompt: prints their list, and makes the bodies that create or pause a schedule."""

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from turnstream_client.events import Json
from turnstream_terminal.text import one_line

_WRITTEN: Final = (
    "name",
    "chat",
    "request",
    "cron",
    "every",
    "zone",
    "missed",
    "grace",
    "body",
    "per_minute",
    "paused",
)
# Minutes with an `m`, or the five fields of a cron expression; the text of the message follows.
_RULE: Final = re.compile(r"(?:(?P<minutes>\d+)m|(?P<cron>(?:\S+\s+){4}\S+))\s+(?P<words>.+)", re.DOTALL)
_LONGEST_NAME: Final = 60


def print_schedules(console: Console, listed: Sequence[Json]) -> None:
    if not listed:
        console.print(Text("There are no schedules and no triggers.", "dim"))
    for number, each in enumerate(listed, start=1):
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{number:>3}  ", "dim")
        line.append(f"{one_line(each['name'])}  ")
        line.append(" · ".join(_facts(each)), "dim")
        console.print(line)


def _facts(each: Json) -> list[str]:
    facts = []
    if each["paused"]:
        facts.append("paused" if each["paused"] == "person" else "paused after failures")
    elif "next_at" in each:
        facts.append(f"next {_time_of(each['next_at'])}")
    if "path" not in each:
        facts.insert(0, f"every {each['every'] / 60:g} min" if each["every"] else f"{each['cron']} {each['zone']}")
    if last := each["last_run"]:
        facts.append(f"last {_time_of(last['tick'])} {last['state']}")
    if "path" in each:
        facts.append(each["path"])
    return facts


def _time_of(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M}"


def changed_body(each: Json, *, paused: bool) -> Json:
    """Returns the body of a schedule or trigger, in which only `paused` is changed."""
    body: Json = {name: each[name] for name in _WRITTEN if name in each}
    return {**body, "paused": paused}


def schedule_of(argument: str, zone: str, chat: str | None) -> Json | None:
    """Converts `60m TEXT` or `30 7 * * 1-5 TEXT` to the body of a schedule. Returns None if `argument` has another
    form.
    """
    match = _RULE.fullmatch(argument)
    if match is None:
        return None
    words = match["words"]
    rule = {"every": int(match["minutes"]) * 60} if match["minutes"] else {"cron": match["cron"], "zone": zone}
    name = one_line(words)[:_LONGEST_NAME]
    return {"name": name, "chat": chat, "request": {"blocks": [{"type": "text", "text": words}]}, **rule}


def local_zone() -> str:
    """Returns the name of this machine's time zone, or UTC if the machine has no time zone."""
    return str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2] or "UTC"
