"""The reference pages of docs/reference: settings, metrics, log events and commands, generated from the code. `make
reference` writes them; a test compares them.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
from prometheus_client.metrics import MetricWrapperBase
from pydantic.fields import FieldInfo

from turnstream import telemetry
from turnstream.cli import commands
from turnstream.config import Section, Settings
from turnstream.extension import installed
from turnstream.libraries import extension_metrics

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs/reference"

_LEVELS = {"info", "warning", "error", "exception", "critical"}
_LINK = re.compile(r"\]\((?=[\w-]+\.md)")  # descriptions link to pages in the folder docs
_SEPARATED = re.compile("[,;] separated by commas")
_MEANING = re.compile(r"^- `([\w.]+)`: (.*)$", re.MULTILINE)


def settings() -> str:
    """Returns a list for the core, and one list for each extension with settings, under the extension's name. A setting
    that several extensions share is described once.
    """
    introduction = (
        "# Every setting\n\nThe page [settings](../settings.md) begins with the twenty that most operators set."
        " A default is in brackets; without one the setting is empty or false. Lists are separated by commas.\n"
    )
    parts, described = [introduction, f"## The core\n\n{_settings(Settings, {})}"], dict[str, str]()
    for each in installed().values():
        if each.settings is not None:
            parts.append(f"## {each.name}\n\n{_settings(each.settings, described)}")
            described = {_name(field): each.name for field in each.settings.model_fields.values()} | described
    return "\n".join(parts)


def _settings(section: type[Section], described: Mapping[str, str]) -> str:
    fields = section.model_fields.values()
    shared = [_name(field) for field in fields if _name(field) in described]
    lines = [f"- {_codes(shared)}: see [{described[shared[0]]}](#{described[shared[0]]})\n"] if shared else []
    lines += [_setting(field) for field in fields if _name(field) not in described]
    return "".join(lines)


def _setting(field: FieldInfo) -> str:
    meaning = _LINK.sub("](../", _SEPARATED.sub("", field.description or ""))
    return f"- `{_name(field)}`{_default(field)}: {meaning}\n"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _name(field: FieldInfo) -> str:
    return str(getattr(field.validation_alias, "choices")[0])  # noqa: B009, the type of an alias is a union


def _default(field: FieldInfo) -> str:
    is_empty = field.default in {None, ""} or field.default is False
    return "" if is_empty else f" (`{field.default}`)"


def metrics() -> str:
    return (
        "# Every metric\n\nThe page [monitoring](../monitoring.md#metrics) has the address and the token."
        " A name that ends in `_total` is a counter.\n\n" + "".join(map(_metric, METRICS))
    )


METRICS: Final = tuple(
    value
    for module in (telemetry, extension_metrics)
    for value in vars(module).values()
    if isinstance(value, MetricWrapperBase)
)


def _metric(metric: MetricWrapperBase) -> str:
    (family,) = metric.describe()
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = _codes(metric._labelnames)
    histogram = ", histogram" if family.type == "histogram" else ""
    return f"- `{name}`{f' by {labels}' if labels else ''}{histogram}: {family.documentation}\n"


def log_events() -> str:
    """Returns the page of log events. The events and their levels come from the code, and the meanings from the present
    page. The line of an event that is no longer logged is removed, and a new event gets a line without a meaning.
    """
    page = (FOLDER / "log-events.md").read_text(encoding="utf-8")
    meanings = dict(_MEANING.findall(page))
    logged = sorted(logged_events())
    parts = ["# Every log event\n\nThe page [monitoring](../monitoring.md#logs) has the form of the lines.\n"]
    for level in ("critical", "error", "warning", "info"):
        lines = (f"- `{event}`: {meanings.get(event, '')}\n" for event, found in logged if found == level)
        parts.append(f"## {level.capitalize()}\n\n{''.join(lines)}")
    return "\n".join(parts)


def logged_events() -> set[tuple[str, str]]:
    """Returns the logged events with their levels."""
    return {found for path in (ROOT / "app").rglob("*.py") for found in _logged(path)}


def _logged(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(ast.Attribute(ast.Name("log"), level), [ast.Constant(str(event))]) if level in _LEVELS:
                yield event, "error" if level == "exception" else level


def commands_page() -> str:
    return (
        "# Every command\n\nThe commands are in `.venv/bin`; in the image they are on the path."
        " `--help` after a command has its options.\n\n"
        + _table(["command", "does"], _commands(commands, click.Context(commands, info_name="turnstream")))
        + _COMMANDS
    )


def command_paths() -> Iterator[str]:
    """Yields the names of each command, without `turnstream`."""
    for call, _ in _commands(commands, click.Context(commands)):
        yield " ".join(word for word in call.strip("`").split() if word.islower())


_COMMANDS = """
- `chat` and `conformance` are in [distributions](../contributing.md#distributions).
- `chat` and `compare` are clients: `--server` or `TURNSTREAM_URL`, `--token` or `TURNSTREAM_TOKEN`.
- All other commands read the [settings](../settings.md) and open the database. `serve`, `migrate`, `tokens create` and
  `owners import` create an embedded database.
"""


def _commands(group: click.Group, context: click.Context) -> Iterator[Sequence[str]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)
        else:
            words = [
                word
                for each in command.params
                if isinstance(each, click.Argument)
                for word in [each.make_metavar(inner)]
            ]
            yield [f"`{' '.join([inner.command_path, *words])}`", command.get_short_help_str(200)]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [_line(head), f"|{'---|' * len(head)}\n", *map(_line, rows)]
    return "".join(cells)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_LINK.sub('](../', cell) for cell in cells)} |\n"


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "settings.md": settings,
    "metrics.md": metrics,
    "log-events.md": log_events,
    "commands.md": commands_page,
}


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
