"""The start of the process: what it imports, and what it leaves for the moment in which it is needed."""

import pytest

from tests.acceptance.conftest import StartServer
from tests.support.server_process import Server

# Not needed to listen: together they take twice as long to import as everything else. `lark` is none of ours:
# jsonschema imports a library that compiles grammars with it, where it finds that library, and this takes a second.
LATER = {"alembic", "anthropic", "lark", "openai", "opentelemetry", "rich.console", "sqlalchemy"}


def imported(running: Server) -> set[str]:
    """The modules that the process had imported when it listened, by the interpreter's own report."""
    start, listens, _ = running.logs.partition("turnstream listens on")
    assert listens
    lines = [line for line in start.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize("settings", [{}, {"ANTHROPIC_API_KEY": "a key", "OPENAI_API_KEY": "a key"}])
async def test_a_start_imports_no_library_that_it_does_not_need(server: StartServer, settings: dict[str, str]) -> None:
    running = await server(PYTHONPROFILEIMPORTTIME="1", **settings)
    modules = imported(running)
    assert {"turnstream.main", "asyncpg", "starlette"} <= modules
    assert modules & LATER == set()
