"""Functions for migrations: they build an index concurrently, and run the steps that migrate old databases."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from alembic import op
from alembic.runtime.migration import MigrationContext

from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.migrations import put_key, steps
from turnstream.storage.row_security import hardening, policies_of

_IS_INVALID = sa.text("SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass(quote_ident(:name))")
_INDEX = re.compile(r"CREATE INDEX CONCURRENTLY IF NOT EXISTS (\w+)")
_SIGNED_OWNERS: Final = "0046"


def create_index_concurrently(name: str, table: str, columns: Sequence[str], **options: Any) -> None:
    """Builds an index concurrently. The migration must do nothing else: if it is interrupted, it runs again from its
    start, although its earlier changes are committed.
    """
    with _building(op.get_context(), name):
        op.create_index(name, table, columns, postgresql_concurrently=True, if_not_exists=True, **options)


def take_steps(migration: MigrationContext, present: str) -> None:
    """Migrates a database from the revision `present` to the oldest revision in `versions`. After an interruption, the
    next migration continues after the last committed step: each build of an index commits the steps before it.
    """
    connection = _connection(migration)
    for revision, statements in steps().items():
        if revision <= present:
            continue
        for statement in statements:
            if index := _INDEX.match(statement):
                with _building(migration, index[1]):
                    connection.exec_driver_sql(statement)
            else:
                connection.exec_driver_sql(statement)
        if revision == _SIGNED_OWNERS:
            put_key(connection)
        connection.exec_driver_sql(f"UPDATE {migration.version_table} SET version_num = '{revision}'")


@contextmanager
def _building(migration: MigrationContext, name: str) -> Iterator[None]:
    """Commits the earlier migrations, with the policies and rights that running servers need, before an index is built.
    Drops the index if an interrupted build has left it invalid.
    """
    connection = _connection(migration)
    for sql in (policies_of(ALL_TABLES.values()), hardening()):
        connection.exec_driver_sql(sql)
    with migration.autocommit_block():
        if connection.scalar(_IS_INVALID, {"name": name}):
            connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY {name}")
        yield


def _connection(migration: MigrationContext) -> sa.Connection:
    assert migration.connection is not None, "migrations are not written into files"
    return migration.connection
