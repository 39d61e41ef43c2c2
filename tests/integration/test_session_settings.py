"""Defaults that an administrator has set for the database. No statement may depend on these defaults."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.support.http_client import Client, said
from tests.support.locks import waiting_to_migrate
from tests.support.reading import Reader
from tests.support.server_process import Server
from turnstream.domain.errors import ConfigError, StatementRefused, StorageUnavailable
from turnstream.storage.database import Statement, _sorted, connect, single_connection
from turnstream.storage.hosts import SESSION_SETTINGS
from turnstream.storage.migrations import newest_revision, present_revision

# A value for each setting that could change the meaning of a statement.
ODD = {
    "default_transaction_isolation": "serializable",
    "row_security": "off",
    "TimeZone": "Asia/Kathmandu",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "array_nulls": "off",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
}
MIGRATION_LOCK = 7_481_516_342


async def set_defaults(url: str, **settings: str) -> None:
    name = urlsplit(url).path[1:]
    connection = await asyncpg.connect(url)
    for setting, value in settings.items():
        await connection.execute(f"ALTER DATABASE {name} SET {setting} TO '{value}'")
    await connection.close()


async def test_no_connection_depends_on_the_defaults_of_its_database(database_url: str) -> None:
    assert ODD.keys() == SESSION_SETTINGS.keys()
    await set_defaults(database_url, **ODD)
    async with connect(database_url, size=1) as database, single_connection(database_url) as connection:
        for name, value in SESSION_SETTINGS.items():
            row = await database.row(Statement(f"SELECT current_setting('{name}') AS value"))
            assert row is not None
            assert (name, row["value"]) == (name, value)
            assert await connection.fetchval(f"SELECT current_setting('{name}')") == value


async def test_behind_a_pooler_another_isolation_is_refused_with_the_statement_that_changes_it(
    database_url: str,
) -> None:
    """Each transaction may get another session, to which no settings were sent."""
    async with connect(database_url, size=1, pooled=True):
        pass
    await set_defaults(database_url, default_transaction_isolation="repeatable read")
    with pytest.raises(ConfigError, match=r"'repeatable read'.*ALTER ROLE"):
        async with connect(database_url, size=1, pooled=True):
            pass


@pytest.mark.timeout(180)
@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_two_servers_start_at_once_on_an_empty_database_with_odd_defaults(
    empty_database_url: str, tmp_path: Path, isolation: str
) -> None:
    await set_defaults(empty_database_url, **{**ODD, "default_transaction_isolation": isolation})
    servers = [Server(empty_database_url, tmp_path, {"TURNSTREAM_MODEL": "demo"}) for _ in range(2)]
    holder = await asyncpg.connect(empty_database_url)
    try:
        await holder.execute("SELECT pg_advisory_lock($1)", MIGRATION_LOCK)
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(server.start())
            await waiting_to_migrate(holder, len(servers))
            await holder.execute("SELECT pg_advisory_unlock($1)", MIGRATION_LOCK)
        assert await present_revision(empty_database_url) == newest_revision()
        for server in servers:
            async with Client(server.url) as client:
                posted = await client.json("POST", "/api/turns", 201, json=said("Go"))
                reader = Reader(client, posted["stream_url"])
                await reader.follow()
                assert reader.turn.end == "turn_complete"
    finally:
        await holder.close()
        for server in servers:
            await server.close()


def test_a_refusal_by_a_policy_is_recognised_in_any_language() -> None:
    """A server answers in the language of its `lc_messages`."""
    error = asyncpg.InsufficientPrivilegeError("neue Zeile verletzt Policy für Sicherheit auf Zeilenebene")
    error.server_source_function = "ExecWithCheckOptions"
    assert isinstance(_sorted(error), StatementRefused)
    error.server_source_function = "aclcheck_error"
    assert isinstance(_sorted(error), StorageUnavailable), "a privilege that was taken away for a while"
