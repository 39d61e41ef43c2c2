"""A database that turnstream shares with the tables of another program, or with another installation."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner

from tests.support.http_client import Client, words_of
from tests.support.http_server import serving
from tests.support.server_process import free_port
from turnstream.cli import commands
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extensions.doctor.command import examine
from turnstream.extensions.owner_commands.owners import _erase
from turnstream.main import running
from turnstream.storage.database import in_schema
from turnstream.storage.migrations import newest_revision, present_revision

HOST = """
CREATE TABLE documents (title text);
CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY);
INSERT INTO alembic_version VALUES ('ae1027a6acf');
"""
RELATIONS = """
SELECT nspname || '.' || relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind = 'r' AND nspname !~ '^(pg_|information)' AND relname ~ '(^documents|alembic_version)$' ORDER BY 1
"""


@pytest.fixture
async def host(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """The database of another program."""
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute(HOST)
    yield connection
    await connection.close()


def settings(url: str, schema: str | None, **more: Any) -> Settings:
    given: dict[str, Any] = {
        "anthropic_api_key": None,
        "openai_api_key": None,
        "gemini_api_key": None,
        "model": "demo",
        **more,
    }
    return Settings(_env_file=None, database_url=url, db_schema=schema, port=free_port(), **given)


async def faults(wanted: Settings) -> list[str]:
    return [each.text for each in await examine(wanted, ping=False) if each.status == "fault"]


@pytest.mark.extensions("demo")
async def test_two_installations_and_a_host_share_a_database(
    empty_database_url: str, host: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    notified: set[str] = set()
    for name in ("turnstream", "turnstream.north", "turnstream.south"):
        await host.add_listener(name, lambda _connection, _pid, channel, _payload: notified.add(channel))
    async with (
        serving(empty_database_url, db_schema="north") as north,
        serving(empty_database_url, db_schema="south") as south,
    ):
        for server in (north, south):
            async with Client(server.url) as api:
                assert words_of((await api.ask(await api.chat())).assistant) == "Hello."
        assert await faults(settings(empty_database_url, "north")) == []
        assert await faults(settings(empty_database_url, "east")) == [], "`serve` would make it"
        monkeypatch.setattr("turnstream.extensions.owner_commands.owners.BELIEVED", 0)
        assert (await _erase(settings(empty_database_url, "south"), "local"))["chats"] == 1
    assert [await host.fetchval(f"SELECT count(*) FROM {schema}.chats") for schema in ("north", "south")] == [1, 0]
    assert notified == {"turnstream.north", "turnstream.south"}
    assert [row[0] for row in await host.fetch(RELATIONS)] == [
        "north.documents",
        "north.turnstream_alembic_version",
        "public.alembic_version",
        "public.documents",
        "south.documents",
        "south.turnstream_alembic_version",
    ]
    assert await host.fetchval("SELECT version_num FROM alembic_version") == "ae1027a6acf"


@pytest.mark.extensions("demo")
@pytest.mark.parametrize("revision", ["ae1027a6acf", "0007"])
async def test_tables_of_another_program_are_never_migrated(
    empty_database_url: str, host: asyncpg.Connection, revision: str
) -> None:
    await host.execute("UPDATE alembic_version SET version_num = $1", revision)
    expected = f"its schema public has the revision '{revision}' of Alembic.*Nothing was changed.*TURNSTREAM_DB_SCHEMA"
    with pytest.raises(ConfigError, match=expected):
        async with running(settings(empty_database_url, None)):
            pass
    await host.execute("DROP TABLE alembic_version; DROP TABLE documents")
    await host.execute("CREATE TABLE webhooks (id int)")
    (fault,) = await faults(settings(empty_database_url, None))
    assert "its schema public has the tables webhooks. Nothing was changed." in fault


async def test_a_database_of_an_earlier_version_keeps_its_table_of_revisions(
    database_url: str,
) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("ALTER TABLE turnstream_alembic_version RENAME TO alembic_version")
    assert await present_revision(database_url) == newest_revision()
    await connection.execute("UPDATE alembic_version SET version_num = '0087'")
    assert await present_revision(database_url) == "0087"
    await connection.close()


def test_a_database_is_taken_back_to_the_revision_of_an_older_version(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    monkeypatch.setenv("TURNSTREAM_DB_SCHEMA", "chat")
    assert CliRunner().invoke(commands, ["migrate"]).exit_code == 0
    done = CliRunner().invoke(commands, ["migrate", "--to", "0087"])
    assert done.output.endswith("back to revision 0087.\n")
    assert asyncio.run(present_revision(in_schema(empty_database_url, "chat"))) == "0087"
    refused = CliRunner().invoke(commands, ["migrate", "--to", "0088"])
    assert "--to must be a revision from 0087 on, up to that of the database, 0087" in str(refused.exception)
