"""Connects Alembic to the database: one asyncpg connection, one process at a time. All migrations are one transaction.
Only a concurrent build of an index runs outside of it, after a commit of the earlier changes.
"""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection, pool, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.schema import CreateSchema

from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.database import ANSWER_TIMEOUT, in_schema, plain_url, schema_of
from turnstream.storage.hosts import open_connection
from turnstream.storage.index_build import take_steps
from turnstream.storage.migration_waits import waits_reported
from turnstream.storage.migrations import (
    RELATIONS,
    apply_files,
    create_tables,
    forget_files,
    newest_revision,
    oldest_in_versions,
    present_revision,
    version_table,
)
from turnstream.storage.row_security import hardening, policies_of

LOCK = 7_481_516_342
_DIALECT = "postgresql+asyncpg://"
# Disables the timeouts that this version of Postgres has.
_NO_TIMEOUTS = text(
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout',"
    " 'transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout')"
)
_TAKE_LOCK = text("SELECT pg_try_advisory_lock(:lock)")
_PAUSE = 0.1  # seconds between two tries


def _url() -> str:
    url: str | None = context.config.attributes.get("url")
    if url:
        return plain_url(url)
    if not (url := os.environ.get("DATABASE_URL")):
        raise SystemExit("DATABASE_URL is not set")
    schema = os.environ.get("TURNSTREAM_DB_SCHEMA")
    return in_schema(plain_url(url), schema) if schema else plain_url(url)


def _migrate(connection: Connection) -> None:
    tables = {*connection.scalars(text(RELATIONS))}
    connection.commit()
    context.configure(
        connection=connection,
        version_table=version_table(tables),
        transactional_ddl=True,
    )
    schema, is_there = schema_of(_url()), text("SELECT to_regnamespace(quote_ident(:schema)) IS NOT NULL")
    with context.begin_transaction():
        if schema is not None and not connection.scalar(is_there, {"schema": schema}):
            connection.execute(CreateSchema(schema))
        migration = context.get_context()
        if not (heads := migration.get_current_heads()):
            migration.stamp(context.script, create_tables(connection))
        elif heads[0] < oldest_in_versions():
            take_steps(migration, heads[0])
        context.run_migrations()
        if migration.get_current_heads() == (newest_revision(),):
            apply_files(connection)
        else:
            forget_files(connection)
        connection.exec_driver_sql(policies_of(ALL_TABLES.values()))
        connection.exec_driver_sql(hardening())


async def _online() -> None:
    url = _url()
    await present_revision(url)  # refuses the tables of another program
    # asyncpg reads the URL as it does for the server's own connections, with `sslmode` and all other options.
    engine = create_async_engine(
        _DIALECT, async_creator=lambda: open_connection(url, timeout=ANSWER_TIMEOUT), poolclass=pool.NullPool
    )
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        # A timeout that is set for the database would abort the migration.
        await connection.execute(_NO_TIMEOUTS)
        async with waits_reported(url, await connection.scalar(text("SELECT pg_backend_pid()")), LOCK):
            # Polls, because a statement that waits for the lock has a snapshot. If the holder of the lock builds an
            # index concurrently, the build waits for every older snapshot.
            while not await connection.scalar(_TAKE_LOCK, {"lock": LOCK}):  # noqa: ASYNC110, Postgres tells nobody
                await asyncio.sleep(_PAUSE)
            await connection.commit()
            await connection.execution_options(isolation_level="READ COMMITTED")
            await connection.run_sync(_migrate)
    await engine.dispose()


if context.is_offline_mode():
    raise SystemExit("migrations are not written into files: steps depend on the database")
asyncio.run(_online())
