import asyncio
import gc
import os
import shutil
import sys
import warnings
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
import structlog
from hypothesis import settings

from tests.support.effort import DAYS, FULL, is_of_a_plain_run, is_of_the_day, share, tries
from tests.support.extensions import are_all_complete, complete, needed_by
from tests.support.other_postgres import use_other_postgres
from tests.support.programs import missing
from tests.support.row_security import admit_api
from turnstream.extensions.embedded.server import EmbeddedPostgres
from turnstream.storage.migrations import upgrade

# Hypothesis sets no deadline for an example, because a loaded machine would miss it.
settings.register_profile("patient", deadline=None, max_examples=tries(100))
settings.load_profile("patient")

LIVE = os.environ.get("LIVE_TESTS") == "1"
IMAGE = os.environ.get("IMAGE_TESTS") == "1"
LARGE = os.environ.get("LARGE_TESTS") == "1"

# Only tests with real providers use TLS. Loading all certificate authorities of the system costs every client and every
# process more time than most tests take.
if not LIVE:
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("nobody.pem"))

_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30  # bytes

# Coverage is counted only for these tests, which test the code of their own layer. Lines that other tests or random
# draws of Hypothesis happen to run say little, and tracing halves the speed in Python 3.11.
_COUNTED = (
    "unit",
    "contracts",
    "conformance",
    "client/test_assembler.py",
    "integration/test_adapters.py",
    "integration/test_anthropic.py",
    "integration/test_counting.py",
    "integration/test_loop_fallback.py",
    "integration/test_programs.py",
    "extensions/anthropic_clouds",
    "extensions/demo",
    "extensions/direct_calls",
    "extensions/gemini",
    "extensions/openai",
    "extensions/rate_limits",
    "lab/test_chaos.py",
    "lab/test_recorded_server.py",
    "lab/test_recording_calls.py",
    "lab/test_replay.py",
    "extensions/chat_stream",
    "integration/api/test_deletion.py",
    "extensions/feed",
)
_TESTS = Path(__file__).parent

# These modules hold a thirtieth of the tests and take half of the time: faults between several processes, long random
# schedules, and tests of whole programs and pages. FULL_TESTS=1, as in `.ci/run`, runs the modules of the day, and
# FULL_TESTS=all runs all of them. A run that names modules always runs the named modules. In other modules, single slow
# tests have the mark `full`.
_FULL_ONLY = (
    *("faults/test_agent_families.py", "browser/test_research_assistant.py"),
    *("faults/test_cells.py", "faults/test_clock_skew.py", "faults/test_conformance_proxies.py"),
    *("faults/test_deploy.py", "faults/test_disk_full.py", "faults/test_failover.py", "faults/test_nginx.py"),
    *("faults/test_out_of_memory.py", "faults/test_patroni.py", "faults/test_poolers.py"),
    "faults/test_postgres_away.py",
    *("faults/test_postgres_misbehaves.py", "faults/test_proxies.py", "faults/test_random_schedules.py"),
    *("faults/test_restored_copy.py", "faults/test_rolling_restart.py", "faults/test_standby.py"),
    *("faults/test_versions.py", "faults/test_way_to_postgres.py", "faults/test_workers.py"),
    *("lab/test_chaotic_turns.py", "integration/test_people_property.py", "integration/test_stalled_readers.py"),
    "integration/test_stream_property.py",
    *("acceptance/test_approvals.py", "acceptance/test_course_assistant.py", "acceptance/test_embedding.py"),
    *("acceptance/test_graph_assistant.py", "acceptance/test_live_tests.py", "acceptance/test_openai.py"),
    *("acceptance/test_package.py", "acceptance/test_pages.py", "lab/test_replay_page.py"),
    "acceptance/test_runbooks.py",
    *("acceptance/test_terminal_approvals.py", "acceptance/test_terminal_client.py"),
    *("browser/test_admin.py", "browser/test_ai_elements.py", "browser/test_assistant_ui.py"),
    *(
        "browser/test_attachments.py",
        "browser/test_budgets.py",
        "browser/test_copilotkit.py",
        "browser/test_firefox.py",
    ),
    *("browser/test_hostile.py", "browser/test_other_origin.py", "browser/test_packages.py", "browser/test_restart.py"),
    *("browser/test_tabs.py", "browser/test_timeline.py"),
    *("node/test_ag_ui.py", "node/test_ai_sdk_package.py", "node/test_generated_client.py", "node/test_openai.py"),
    *("node/test_claude_code.py", "node/test_codex.py", "acceptance/test_anthropic.py"),
)
# In the order of the list, so that modules of similar cost come on different days.
_FULL_NOW = share(_FULL_ONLY, DAYS, 1) if FULL else ()

# Folders whose tests need a program that a machine may lack. Single tests have the mark `needs`.
_NEEDED_BY_FOLDER = {"browser": ["Chromium"], "node": ["Node", "npm"]}


def pytest_configure() -> None:
    use_other_postgres()
    _keep_folders_in_memory()


def _keep_folders_in_memory() -> None:
    """Keeps temporary folders in memory if there is room: a database has three hundred files, and creating them on a
    disk takes ten times as long.
    """
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Excludes modules and tests from garbage collection, because they live as long as the run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Keeps a run from importing modules that it does not run: modules of other days, and modules of missing
    extensions.
    """
    if not (collection_path.is_file() and collection_path.is_relative_to(_TESTS)):
        return None
    name = collection_path.relative_to(_TESTS).as_posix()
    is_now = name in _FULL_NOW if name in _FULL_ONLY else is_of_a_plain_run(name)
    is_now = is_now or (FULL and _is_counted(collection_path))
    is_useless = not are_all_complete() and not complete() >= needed_by(collection_path)
    return is_useless or not (_are_named(config) or is_now) or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Releases the connections and tasks of a failed test silently right after the test. Otherwise the traceback would
    keep them alive until the next test, which would then get their warnings and fail too.
    """
    result = yield
    if getattr(sys, "last_traceback", None) is not None:
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):  # `last_exc` exists from Python 3.12 on
            vars(sys).pop(name, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    return result


def _are_named(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.ARGS


def _limited(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Awaitable[None]]:
    @wraps(test)
    async def limited(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(seconds):
            await test(*args, **kwargs)

    return limited


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests that a run does not include, instead of skipping them. Live tests run only on request, because
    they cost money. Tests of the image (minutes), tests of large tables, and tests with the mark `full` also run only
    on request.

    The modules with the longest time limits come first, so that no worker is late at the end. An async test that hangs
    fails after three quarters of its time limit. After the whole limit, pytest-timeout kills the process, and the
    coverage of earlier tests is lost.
    """
    left_out = [name for name, asked in {"live": LIVE, "image": IMAGE, "large": LARGE}.items() if not asked]
    if deselected := [
        item
        for item in items
        if any(map(item.get_closest_marker, left_out))
        or (item.get_closest_marker("full") and not (_are_named(config) or is_of_the_day(item.nodeid)))
        or not complete() >= _extensions_of(item)
    ]:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]
    most: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        given = item.get_closest_marker("timeout")
        if given:
            most[item.path] = max(most[item.path], *given.args)
        if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
            seconds = given.args[0] if given else float(config.getini("timeout"))
            item.obj = _limited(item.obj, 0.75 * seconds)
    items.sort(key=lambda item: -most[item.path])
    for item in items:
        if not _is_counted(item.path) or item.get_closest_marker("hypothesis"):
            item.add_marker("no_cover")
        programs = [name for marker in item.iter_markers("needs") for name in marker.args]
        if reason := missing(*programs, *_NEEDED_BY_FOLDER.get(item.path.parent.name, ())):
            item.add_marker(pytest.mark.skip(reason=reason))


def _extensions_of(item: pytest.Item) -> set[str]:
    """Returns the extensions that the marks of a test name."""
    return {name for marker in item.iter_markers("extensions") for name in marker.args}


@cache
def _is_counted(path: Path) -> bool:
    return any(path.is_relative_to(_TESTS / place) for place in _COUNTED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The process that writes the summary prints the counts of tests (`record_property`)."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")


@pytest.fixture(scope="session", autouse=True)
def plain_logs() -> None:
    """Logs tracebacks in their plain form, because coloured tracebacks take a second each."""
    processors = structlog.processors
    structlog.configure([processors.add_log_level, processors.format_exc_info, processors.KeyValueRenderer()])


# --- databases -----------------------------------------------------------------------------------------------

# Postgres uses half of the CPU time of tests with a database, mostly to plan statements on new connections. For each
# statement, a connection makes a generic plan once, and a custom plan up to five times. A server that has run for a
# while uses generic plans.
DISPOSABLE = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "plan_cache_mode": "force_generic_plan",
    "max_connections": "400",
    # Autovacuum would be a second client of a copied database, and would change statistics in the middle of a test.
    "autovacuum": "off",
}


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """Returns the DSN of the server that DATABASE_URL names, or of one server that all workers of the run share."""
    given = os.environ.get("DATABASE_URL")
    if given:
        yield given.replace("postgresql+asyncpg://", "postgresql://")
        return
    with EmbeddedPostgres(_folder_of_the_run(tmp_path_factory, worker_id) / "server", DISPOSABLE) as dsn:
        yield dsn


class Databases:
    """Creates and drops databases of the server on one connection: most tests need a database, and a new connection
    costs half as much as a database.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._connection: Any = None

    @contextmanager
    def new(self, template: str) -> Iterator[str]:
        name = f"test_{uuid4().hex}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield urlsplit(self._server)._replace(path=f"/{name}").geturl()
        finally:
            self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def close(self) -> None:
        with self._runner:
            if self._connection is not None:
                self._runner.run(self._connection.close())

    def _execute(self, statement: str) -> None:
        if self._connection is None:
            self._connection = self._runner.run(asyncpg.connect(self._server))
        self._runner.run(self._connection.execute(statement))


@pytest.fixture(scope="session")
def databases(postgres_server: str) -> Iterator[Databases]:
    databases = Databases(postgres_server)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def template_database(databases: Databases) -> Iterator[str]:
    """The name of a migrated database that nobody is connected to."""
    with databases.new("template0") as url:
        upgrade(url)
        asyncio.run(admit_api(url))  # otherwise each server would admit the API at its start, with seventy statements
        yield urlsplit(url).path[1:]


@pytest.fixture
def database_url(databases: Databases, template_database: str) -> Iterator[str]:
    """A fresh migrated database."""
    with databases.new(template_database) as url:
        yield url


@pytest.fixture
def other_database_url(databases: Databases, template_database: str) -> Iterator[str]:
    """A second fresh migrated database."""
    with databases.new(template_database) as url:
        yield url


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """A database without any table."""
    with databases.new("template0") as url:
        yield url


@pytest.fixture(scope="module")
def shared_database_url(databases: Databases, template_database: str) -> Iterator[str]:
    """A database that all tests of a module share. It is meant for modules whose servers take longer to start than a
    test takes to run.
    """
    with databases.new(template_database) as url:
        yield url


@pytest.fixture(scope="module")
def second_database_url(databases: Databases, template_database: str) -> Iterator[str]:
    """A second shared database, beside `shared_database_url`."""
    with databases.new(template_database) as url:
        yield url


def _folder_of_the_run(factory: pytest.TempPathFactory, worker_id: str) -> Path:
    base = factory.getbasetemp()
    return base if worker_id == "master" else base.parent
