"""Compares the pages under docs/ with the code."""

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import get_args

import pytest

from tests.support import dialects, reference
from tests.support.calls import ENDPOINTS
from tests.support.clients import ABILITIES, CLIENTS, NONE, table_of_clients
from tests.support.model_apis import TABLES, schemas_by_name
from tests.support.pages import PAGES, ROOT
from turnstream.api.events import _EVENTS, EVENTS
from turnstream.api.http.connection import KEEP_ALIVE
from turnstream.api.schemas.requests import ChatSettings, LimitsIn, NewTurnInNewChat
from turnstream.config import Section, Settings, variables
from turnstream.domain.errors import RefusalCode
from turnstream.domain.jobs import JOB_TRANSITIONS
from turnstream.domain.limits import BUDGET
from turnstream.domain.output import Failure
from turnstream.domain.plans import KEPT, MEASURES
from turnstream.domain.turns import ENDED, TRANSITIONS
from turnstream.engine.metrics import _LASTING_ERRORS, _RETRY_REASONS
from turnstream.extension import installed, sections
from turnstream.extensions.openai.quirks import QUIRKS
from turnstream.libraries.providers.transport.failures import TOO_LONG
from turnstream.storage.all_tables import ALL_TABLES

PROTOCOL = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
API = (ROOT / "docs/api.md").read_text(encoding="utf-8")
DIALECTS = (ROOT / "docs/dialects.md").read_text(encoding="utf-8")
FRONTENDS = (ROOT / "docs/frontends.md").read_text(encoding="utf-8")
EXTENSIONS = (ROOT / "docs/extensions.md").read_text(encoding="utf-8")
FAULTS = (ROOT / "tests/faults/README.md").read_text(encoding="utf-8")
LIMITS = (ROOT / "docs/limits.md").read_text(encoding="utf-8")
STATES = (ROOT / "docs/states.md").read_text(encoding="utf-8")

_CODE = re.compile(r"`(\w+)`")
TESTS = tomllib.loads((ROOT / "tests/promises.toml").read_text(encoding="utf-8"))


def rows_after(page: str, heading: str) -> list[list[str]]:
    """Returns the cells of the first table below a heading, without the table's header row."""
    section = page.split(f"\n{heading}\n", 1)[1]
    table = re.search(r"^(\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    readme, benchmarks = (
        PAGES[0].read_text(encoding="utf-8"),
        (ROOT / "tests/bench/README.md").read_text(encoding="utf-8"),
    )
    takeover = re.search(r"second replica takes over: first new delta, s \| ([\d.]+) ", benchmarks)
    streams = re.search(r"\| streams \| (\d+) \| (\d+) \|", benchmarks)
    assert takeover is not None
    assert streams is not None
    assert f"[{takeover[1]} seconds](tests/bench/README.md#recovery-and-replicas)" in readme
    assert f"[{streams[1]} streams](tests/bench/README.md#figures)" in readme
    assert f"which stores nothing, carries {streams[2]}." in readme


# --- limits ----------------------------------------------------------------------------------------------------------


def test_every_limit_of_a_plan_is_on_its_page() -> None:
    named = [name for cell, *_ in rows_after(LIMITS, "## Plans") for name in re.findall(r"`(\w+)", cell)]
    assert {name.removesuffix("_per_") for name in named} == {*MEASURES, *KEPT}


# The words with which the page describes what each sweep removes. A sweep with the value None only cleans up after
# writes, and the page does not describe it.
REMOVED = {
    "audit": "audit trail",
    "deleted chats": "marks of deleted chats",
    "old chats": "chats, uploads, recordings",
    "old idempotency keys": "idempotency keys",
    "old runs of schedules": "schedules and triggers",
    "old uploads": "chats, uploads, recordings",
    "old {table}": "webhooks",
    "open text": None,
    "rate limits": None,
    "reservations": None,
    "search": None,
    "tool cache": "tool cache",
    "tool sets": "tool sets",
    "unused uploads": "uploads without a turn",
}


def test_what_each_sweep_removes_is_on_its_page() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "app").rglob("*.py"))
    assert {*re.findall(r"\bSweep\(f?\"(.*?)\"", code)} == REMOVED.keys()
    rows = [cell for cell, _ in rows_after(LIMITS, "## What is removed by itself")]
    assert [words for words in REMOVED.values() if words and not any(words in row for row in rows)] == []


# --- data ------------------------------------------------------------------------------------------------------------

_WRITES_ENTRIES = re.compile(r"INTO audit \(|\.note\(|\bNOTE\b|note_sign_in\(|\bLOGIN_REFUSED =")


def test_the_table_of_the_audit_trail_has_every_kind_of_entry() -> None:
    files = [path for folder in ("app", "migrations/sql") for path in (ROOT / folder).rglob("*")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in {".py", ".sql"}]
    named = re.findall(r"[\"']([a-z_]+\.[a-z_]+)[\"']", "".join(filter(_WRITES_ENTRIES.search, texts)))
    others = {event for event, _ in reference.logged_events()}
    rows = rows_after((ROOT / "docs/data.md").read_text(encoding="utf-8"), "## The audit trail")
    told = {kind for kinds, _ in rows for kind in re.findall(r"`(\w+\.\w+)`", kinds)}
    assert told - {*named} == set()
    assert {kind for kind in named if not kind.startswith("turnstream.")} - others - told == set()


# --- protocol --------------------------------------------------------------------------------------------------------


def promises() -> dict[str, str]:
    """Returns the text of each promise in the protocol, by its number."""
    return dict(re.findall(r"^\*\*(\w+)\.\*\* (.*?)\n$", PROTOCOL, re.MULTILINE | re.DOTALL))


@cache
def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_must_has_a_number() -> None:
    numbered = sum(text.count("MUST") for text in promises().values())
    introduction = PROTOCOL.split("## Terminology")[0].count("MUST")
    assert PROTOCOL.count("MUST") == numbered + introduction


def test_every_promise_names_tests_that_exist() -> None:
    listed = TESTS["protocol"]
    assert list(listed) == list(promises())
    assert [number for number, tests in listed.items() if not tests] == []
    assert [test for tests in listed.values() for test in tests if not _exists(test)] == []


def test_each_extension_that_answers_messages_is_a_dialect() -> None:
    answering = {
        extension.name
        for extension in installed().values()
        for group in extension.calls()
        for each in group.endpoints
        if {"requests", "queued_turns"} <= set(each.limits or ())
    }
    assert answering - {"fork"} == dialects.DIALECTS.keys()  # a fork answers in the server's own protocol


def test_each_job_of_each_dialect_names_a_test_that_exists() -> None:
    heading = "The abilities of each dialect ([tests](../tests/promises.toml)):"
    assert f"| job | {' | '.join(dialects.DIALECTS.values())} |" in DIALECTS
    able = {
        job: [dialect for dialect, cell in zip(dialects.DIALECTS.values(), cells, strict=True) if cell == "yes"]
        for job, *cells in rows_after(DIALECTS, heading)
    }
    assert able == {job: list(tests) for job, tests in TESTS["dialects"].items()}
    assert [test for tests in TESTS["dialects"].values() for test in tests.values() if not _exists(test)] == []


def test_each_cell_of_the_table_of_clients_is_a_test_that_exists() -> None:
    assert [client for client, cells in CLIENTS.items() if len(cells) != len(ABILITIES)] == []
    named = {cell for cells in CLIENTS.values() for cell in cells if cell != NONE}
    assert [cell for cell in named if not _exists(cell)] == []
    assert table_of_clients() in DIALECTS, "python -m tests.support.clients writes it"


def _exists(name: str) -> bool:
    file, test = name.split("::")
    return (ROOT / file).is_file() and test.startswith("test_") and test in functions_in(ROOT / file)


def test_the_protocol_names_every_event_and_each_of_its_members() -> None:
    rows = rows_after(PROTOCOL, "## Events") + rows_after(PROTOCOL, "### Notices")
    told = {name.strip("`"): set(re.findall(r"`(\w+)`", members)) for name, members in rows}
    assert told.keys() == EVENTS.keys()
    for name, model in EVENTS.items():
        assert set(model.model_fields) <= told[name], name


def test_the_example_with_event_source_listens_to_every_event() -> None:
    (example,) = re.findall(r"```js\n(const source.*?)```", FRONTENDS, re.DOTALL)
    lists = dict(re.findall(r"^const (\w+) = \[(.*)\]$", example, re.MULTILINE))
    named = {name: set(re.findall(r"'(\w+)'", names)) for name, names in lists.items()}
    assert named["notices"] == EVENTS.keys() - _EVENTS.keys()
    assert named["ends"] == {f"turn_{status}" for status in ENDED}
    assert named["events"] == _EVENTS.keys() - named["ends"]


# --- the API ---------------------------------------------------------------------------------------------------------


def test_the_table_of_calls_is_the_calls() -> None:
    calls = [f"{endpoint.method} {endpoint.path.replace(':path}', '}')}" for endpoint in ENDPOINTS]
    told = [call for cell, _ in rows_after(API, "## Calls") for call in _calls_in(cell)]
    assert sorted(told) == sorted(calls)


def _calls_in(cell: str) -> Iterator[str]:
    """Yields the calls that a table cell names. A method without a path belongs to the next path, as in `GET` or `PUT
    /a`.
    """
    methods: list[str] = []
    for code in re.findall("`([^`]+)`", cell):
        method, _, path = code.partition(" ")
        methods.append(method)
        if path:
            yield from (f"{each} {path}" for each in methods)
            methods = []


def test_the_table_of_the_body_of_a_turn_is_its_schema() -> None:
    told = {name for names, _ in rows_after(API, "## The body of a turn") for name in _CODE.findall(names)}
    assert told == NewTurnInNewChat.model_fields.keys() - {"role"}


def test_the_page_has_every_limit_of_a_turn_and_every_setting_of_a_chat() -> None:
    (limits,) = [meaning for names, meaning in rows_after(API, "## The body of a turn") if names == "`limits`"]
    assert set(_CODE.findall(limits.partition("(")[0])) == LimitsIn.model_fields.keys()
    (settings,) = re.findall(r"^`settings` of a chat has (.*?)\.", API, re.MULTILINE)
    assert set(_CODE.findall(settings)) == ChatSettings.model_fields.keys()


def test_the_table_of_refusals_has_every_code() -> None:
    told = [code for _, codes, _ in rows_after(API, "## Refusals") for code in _CODE.findall(codes)]
    assert sorted(told) == sorted(get_args(RefusalCode))


# Failures of a summary or of a token count, which do not end a turn.
_ASIDE = {"bad_count", "breaker_open", "no_summary"}


def test_troubleshooting_has_every_type_of_a_failed_turn() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    told = {type for types, _, _ in rows_after(page, "## A turn failed") for type in _CODE.findall(types)}
    folders = ("engine", "libraries/providers/transport", "tools")
    modules = [path for folder in folders for path in (ROOT / "app/turnstream" / folder).glob("*.py")]
    made = {
        node.args[0].value
        for module in modules
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"PermanentError", "TransientError", "TurnError"}
        and isinstance(node.args[0], ast.Constant)
    }
    assert "stall_timeout" in made
    assert told == made - _ASIDE | _RETRY_REASONS | _LASTING_ERRORS | {BUDGET, TOO_LONG, *get_args(Failure)}


# --- states ----------------------------------------------------------------------------------------------------------


def test_the_diagram_of_the_states_is_the_table_of_the_code() -> None:
    edges = set(re.findall(r"^ {4}([\w[\]*]+) --> ([\w[\]*]+)", STATES, re.MULTILINE))
    drawn = {(now, then) for now, then in edges if "[*]" not in {now, then}}
    assert drawn == {(now, then) for now, ways_out in TRANSITIONS.items() for then in ways_out}
    assert edges - drawn == {("[*]", "queued"), *((status, "[*]") for status in ENDED)}


def test_the_table_of_the_states_of_a_job_is_the_table_of_the_code() -> None:
    rows = rows_after(STATES, "## A job")
    edges = {(now, then) for froms, then, _ in rows for now in froms.split(", ")}
    again = {("running", "running")}  # another replica has taken over the job
    begins = {("none", "due"), ("none", "detached")}
    assert edges == {(now, then) for now, ways_out in JOB_TRANSITIONS.items() for then in ways_out} | again | begins


# --- operations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_of_the_reference_matches_the_code(name: str) -> None:
    page = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert page == reference.PAGES[name](), "make reference"


def test_every_log_event_has_a_meaning() -> None:
    page = (reference.FOLDER / "log-events.md").read_text(encoding="utf-8")
    assert re.findall(r"^- `([\w.]+)`: *$", page, re.MULTILINE) == []


def test_the_first_twenty_settings_are_settings() -> None:
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    rows = rows_after(page, "## The first twenty")
    named = [name for _, cell in rows for name in re.findall(r"`(\w+)`", cell)]
    assert len(named) == len(set(named)) == 20
    every: Sequence[type[Section]] = [Settings, *sections()]
    assert set(named) <= {name for section in every for name in variables(section).values()}


def test_the_map_of_the_tables_has_every_table_once() -> None:
    page = (ROOT / "docs/tables.md").read_text(encoding="utf-8")
    owners: dict[str, str] = {}
    for cell, paths in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| .* \| (.*) \|$", page, re.MULTILINE):
        names = re.findall(r"\w+", cell)
        owners |= zip(names, cycle(paths.split("; ")), strict=False)
        assert len(names) in {1, 2}
    words = {"owner": "its column", "chat_id": "the chat", "turn_id": "the turn", None: "none"}
    assert owners == {name: words[table.ownership.path] for name, table in ALL_TABLES.items()}


def test_the_table_of_extensions_matches_the_installed_ones() -> None:
    rows = [row[:2] for row in rows_after(EXTENSIONS, "## What can be left out")]
    assert rows == [[f"`{each.name}`", each.summary] for each in installed().values()]


def test_every_extension_of_the_tree_is_an_entry_point() -> None:
    folders = {path.parent.name for path in (ROOT / "app/turnstream/extensions").glob("*/__init__.py")}
    beside = {path.parent.name.removeprefix("turnstream_") for path in (ROOT / "app").glob("*/extension.py")}
    assert folders | beside - {"turnstream"} == set(installed())


# --- providers -------------------------------------------------------------------------------------------------------

PROVIDERS = (ROOT / "docs/providers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("heading", "guarded"), [("## Parameters", False), ("### Parameters that the operator allows", True)]
)
def test_the_tables_of_parameters_are_the_tables_of_the_code(heading: str, guarded: bool) -> None:
    described: dict[str, tuple[str, set[str]]] = {}
    for name, _, meaning, *apis in rows_after(PROVIDERS, heading):
        taken: set[str] = {api for api, cell in zip(TABLES, apis, strict=True) if cell.strip() == "yes"}
        described[name.strip("`")] = (meaning, taken)
    expected: dict[str, tuple[str, set[str]]] = {}
    for api, table in TABLES.items():
        for parameter in table:
            if parameter.guarded == guarded:
                _, taken = expected.setdefault(parameter.name, (parameter.description, set()))
                taken |= set() if parameter.is_refused_by("any-model") else {api}
    assert described == expected
    assert list(described) == sorted(described)


def test_the_ranges_of_parameters_are_those_of_the_code() -> None:
    values = {name.strip("`"): values for name, values, *_ in rows_after(PROVIDERS, "## Parameters")}
    for name, schema in schemas_by_name().items():
        bounds = [schema[bound] for bound in ("minimum", "exclusiveMinimum", "maximum") if bound in schema]
        choices = [f"`{choice}`" for choice in schema.get("enum", ())]
        for part in [f"{bound:.15g}" for bound in bounds] + choices if name in values else ():
            assert part in values[name], name


def test_the_table_of_quirks_has_their_parameters() -> None:
    section = PROVIDERS[PROVIDERS.index("Some parameters are taken by some servers only:") :]
    rows = rows_after(f"\n## x\n{section}", "## x")
    assert {name.strip("`"): set(_CODE.findall(params)) for name, params in rows} == {
        name: set(quirks.params) for name, quirks in QUIRKS.items()
    }


def test_the_table_of_the_forms_of_requests_has_every_quirk() -> None:
    section = PROVIDERS[PROVIDERS.index("| `quirks` | limit of an answer |") :]
    told = {}
    for name, most, thinking, thoughts, _ in rows_after(f"\n## x\n{section}", "## x"):
        effort = None if thinking == "not sent" else thinking.strip("`")
        told[_CODE.findall(name)[0]] = (most.strip("`"), effort, thoughts == "yes")
    assert told == {
        name: (quirks.max_tokens, quirks.thinking, quirks.thoughts_go_back) for name, quirks in QUIRKS.items()
    }


# --- contributing ----------------------------------------------------------------------------------------------------


def test_the_table_of_faults_names_every_module_that_tests_one() -> None:
    named = {module for _, modules in rows_after(FAULTS, "## Faults") for module in re.findall("`(.*?)`", modules)}
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/faults/test_*.py")} <= named


# --- every page ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8"))
    targets = [(page.parent / file if file else page, place) for file, place in links]
    assert [f"{file}#{place}" for file, place in targets if not _leads(file, place)] == []


def _leads(file: Path, place: str) -> bool:
    return file.exists() and (not place or place in _places_in(file))


def _places_in(page: Path) -> set[str]:
    """Returns the anchors that GitHub generates for the headings."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:app|docs|tests|migrations)/[\w/.-]+)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", ["architecture", "contributing", "decisions"])
def test_paths_below_the_server_exist(page: str) -> None:
    named = re.findall(r"`([a-z_]+/[\w/.]+)`", (ROOT / f"docs/{page}.md").read_text(encoding="utf-8"))
    assert named
    roots = (ROOT, ROOT / "app/turnstream")
    assert [path for path in named if not any((root / path).exists() for root in roots)] == []


@pytest.mark.parametrize("script", ["Makefile", ".ci/run", ".ci/pythons", ".ci/newest", ".ci/versions.txt"])
def test_files_that_a_script_names_exist(script: str) -> None:
    """pytest runs no tests if a given folder is missing, so the folders in a script must exist."""
    named = re.findall(
        r"(?<![\w/.])(?:\.ci|app|docs|migrations|tests)/[\w/.-]*\w", (ROOT / script).read_text(encoding="utf-8")
    )
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("script", ["Dockerfile", "Makefile"])
def test_modules_that_a_script_imports_exist(script: str) -> None:
    text = (ROOT / script).read_text(encoding="utf-8").replace("\\\n", "")
    (listed,) = re.findall(r"import (turnstream\.[\w., ]+)", text)
    modules = [name.strip() for name in listed.split(",")]
    assert "turnstream.cli.serve" in modules
    assert [name for name in modules if find_spec(name) is None] == []


@pytest.mark.parametrize("path", ["nginx.conf", "nginx-cells.conf"])
def test_a_proxy_closes_idle_connections_before_a_replica_does(path: str) -> None:
    text = (ROOT / "docs/deploy" / path).read_text(encoding="utf-8")
    kept = [int(seconds) for seconds in re.findall(r"keepalive_timeout (\d+)s;", text)]
    assert len(kept) == text.count("keepalive 64;")
    assert max(kept) < KEEP_ALIVE


def test_the_page_on_embedding_keeps_idle_connections_as_long_as_a_server() -> None:
    page = (ROOT / "docs/embedding.md").read_text(encoding="utf-8")
    assert f"timeout_keep_alive={KEEP_ALIVE})" in page
    assert f"`serve` after {KEEP_ALIVE}:" in page


def test_every_page_can_be_found_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if page.parent.name == "docs" and f"docs/{page.name}" not in readme] == []
