"""The start of the process: modules that it imports at once, and modules that it imports at their first use."""

import pytest

from tests.acceptance.conftest import StartServer
from tests.support.server_process import Server

# Modules that a server does not need to listen. Their import takes twice as long as all other imports together. `lark`
# is a transitive import: jsonschema imports another library if it is installed, and this library spends a second on
# compiling grammars with `lark`.
LATER = {"alembic", "anthropic", "lark", "openai", "opentelemetry", "rich.console", "sqlalchemy"}


def imported(running: Server) -> set[str]:
    """The modules that the process had imported before it listened, according to the interpreter's report."""
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
