"""Tests for the private parts of libraries on which turnstream depends. If a new version of a library changes such a
part, a test here fails first.
"""

import asyncio
import re
import socket
import tomllib
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from starlette.applications import Starlette
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from turnstream.api.http.connection import Connection
from turnstream.storage import driver
from turnstream.storage.driver import is_in_transaction, terminate
from turnstream.storage.hosts import open_connection

ROOT = Path(__file__).parents[2]
# Libraries of the core whose private parts turnstream uses, each in one module, or whose error texts or error types it
# uses.
BOUND = ("aiohttp", "asyncpg", "httpx2", "jsonschema-rs", "pydantic", "uvicorn")


@pytest.mark.parametrize("package", BOUND)
def test_a_library_whose_private_parts_are_used_has_an_upper_bound(package: str) -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    (bounds,) = (each.removeprefix(package) for each in needed if re.match(rf"{package}[<>=]", each))
    newest = tuple(map(int, distribution(package).version.split(".")[:2]))
    assert bounds.endswith(f",<{newest[0]}.{newest[1] + 1}"), "raise it when this version has passed these tests"


async def test_a_transaction_that_could_not_begin_is_seen_on_the_connection(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    assert not is_in_transaction(connection)
    beginning = asyncio.create_task(connection.transaction().start())
    await asyncio.sleep(0)
    beginning.cancel()
    await asyncio.gather(beginning, return_exceptions=True)
    assert is_in_transaction(connection)
    await connection.close()


async def test_a_connection_is_closed_while_its_statement_is_still_being_cancelled(database_url: str) -> None:
    connection: Any = await asyncpg.connect(database_url, command_timeout=0.05)
    link = connection._transport.get_extra_info("socket")
    assert link is not None
    assert link.family == socket.AF_UNIX
    with pytest.raises(TimeoutError):
        await connection.execute("SELECT pg_sleep(60)")
    (cancellation,) = connection._cancellations
    terminate(connection)
    assert connection.is_closed()
    await cancellation  # the cancellation continues after the close


ASKED_FOR: list[tuple[str, Any]] = [
    ("bigint[]", [2**40]),
    ("json[]", ['{"a": 1}']),
    ("timestamptz[]", [datetime(2026, 1, 1, tzinfo=UTC)]),
    ("uuid[]", [UUID(int=1), None]),
    ("owner_scope", "ada"),
]


@pytest.mark.parametrize(("name", "value"), ASKED_FOR, ids=[name for name, _ in ASKED_FOR])
@pytest.mark.parametrize("cached", [100, 0], ids=["named", "nameless"])
async def test_postgres_is_asked_for_a_type_once(
    name: str, value: Any, cached: int, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_described", {})
    statement = f"SELECT $1::{name}"
    answers = []
    for ask in (True, False):
        connection = await open_connection(database_url, timeout=60, statement_cache_size=cached)
        with monkeypatch.context() as patch:
            if not ask:
                patch.setattr(asyncpg.Connection, "_introspect_types", None)
            answers.append(await connection.fetchval(statement, value))
            assert await connection.fetchval(statement, None) is None
        await connection.close()
    assert answers == [value, value]
    assert len(driver._described) == 1


def test_the_protocol_of_uvicorn_has_the_steps_that_a_connection_extends() -> None:
    for name in (
        *("connection_made", "connection_lost", "data_received", "shutdown", "pause_writing", "resume_writing"),
        *("on_message_begin", "on_headers_complete", "on_body", "on_message_complete", "on_response_complete"),
        "send_400_response",
    ):
        assert callable(getattr(HttpToolsProtocol, name)), name
    assert asyncio.iscoroutinefunction(RequestResponseCycle.send)


async def test_a_connection_has_few_enough_members_to_share_their_names_with_others() -> None:
    connection = Connection(Config(Starlette()), ServerState(), {}, stall=1.0, most=1)
    connection.on_message_begin()
    assert len(vars(connection)) <= 30, "beyond this number CPython copies the names for each instance"
