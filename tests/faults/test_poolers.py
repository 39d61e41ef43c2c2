"""PgBouncer between the replicas and Postgres, in its two pool modes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from pydantic import SecretStr

from tests.faults.fifty_turns import TURNS, check_all_is_well, fifty_turns, until_all
from tests.faults.postgres import Postgres, own_postgres
from tests.support.programs import path_of
from tests.support.server_process import free_port
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extensions.embedded.account import account_for
from turnstream.main import running

pytestmark = [pytest.mark.timeout(300), pytest.mark.needs("PgBouncer")]

WEBHOOK = {
    "TURNSTREAM_WEBHOOK_URL": "http://127.0.0.1:1/",
    "TURNSTREAM_WEBHOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}

Pooler = Callable[[Postgres], AbstractAsyncContextManager[Mapping[str, str]]]


def pgbouncer(folder: Path, mode: str) -> Pooler:
    @asynccontextmanager
    async def before(postgres: Postgres) -> AsyncIterator[Mapping[str, str]]:
        port, (address, user) = free_port(), _address(postgres.url)
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\n* = {address} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
            f"unix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = 24\n"
        )
        program = path_of("PgBouncer")
        account = account_for(postgres.folder, program, postgres.folder)  # PgBouncer does not run as root either
        process = await asyncio.create_subprocess_exec(*account.prefix, program, "-q", str(configuration))
        url = f"postgresql://{user}@127.0.0.1:{port}{urlsplit(postgres.url).path}"
        past = {"TURNSTREAM_SESSION_URL": postgres.url, "TURNSTREAM_STATEMENT_CACHE": "0"}
        try:
            await _listening(process, url)
            yield {"DATABASE_URL": url, **WEBHOOK, **(past if mode == "transaction" else {})}
        finally:
            process.terminate()
            await process.wait()

    return before


def _address(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    host = parse_qs(parts.query)["host"][0]
    port = parse_qs(parts.query).get("port", ["5432"])[0]
    return f"host={host} port={port}", parts.username or "postgres"


async def _listening(process: asyncio.subprocess.Process, url: str) -> None:
    async with asyncio.timeout(60):
        while True:
            assert process.returncode is None, f"PgBouncer ended with {process.returncode}"
            try:
                connection = await asyncpg.connect(url, statement_cache_size=0)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                await connection.close()
                return


@pytest.mark.extensions("webhooks")
@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_fifty_turns_are_whole_behind_a_pooler_and_each_leaves_its_webhook(tmp_path: Path, mode: str) -> None:
    async with (
        own_postgres(tmp_path) as postgres,
        pgbouncer(tmp_path, mode)(postgres) as pooled,
        fifty_turns(postgres.url, tmp_path, **pooled) as site,
    ):
        for gate in ("before the call", "end of text", "effect", "before the end"):
            site.model.open(gate)
        await until_all(site.readers, lambda reader: reader.turn.end is not None)
        await check_all_is_well(site)
        connection = await asyncpg.connect(postgres.url)
        assert await connection.fetchval("SELECT count(*) FROM webhooks") == TURNS
        await connection.close()


async def test_a_schema_is_found_behind_a_pooler_if_its_user_has_the_search_path(tmp_path: Path) -> None:
    async with own_postgres(tmp_path) as postgres:
        connection = await asyncpg.connect(postgres.url)
        pooled = pgbouncer(tmp_path, "transaction")
        async with pooled(postgres) as given:
            with pytest.raises(ConfigError, match=r"leads to the schema public, .* SET search_path = chat"):
                await _start(given)
        await connection.execute("ALTER ROLE postgres IN DATABASE postgres SET search_path = chat")
        async with pooled(postgres) as given:
            await _start(given)
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = $1"
        assert [await connection.fetchval(tables, schema) > 0 for schema in ("chat", "public")] == [True, False]
        await connection.close()


async def _start(given: Mapping[str, str]) -> None:
    settings = Settings(
        _env_file=None,
        database_url=SecretStr(given["DATABASE_URL"]),
        session_url=SecretStr(given["TURNSTREAM_SESSION_URL"]),
        statement_cache=0,
        db_schema="chat",
        model="demo",
        port=free_port(),
    )
    async with running(settings):
        pass
