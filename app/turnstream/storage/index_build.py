"""For migrations: an index of a table that exists is built while the table is written."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from turnstream.storage.row_security import hardening, policies_of
from turnstream.storage.tables import metadata

_IS_INVALID = sa.text("SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass(quote_ident(:name))")


def create_index_concurrently(name: str, table: str, columns: Sequence[str], **options: Any) -> None:
    """The migration does nothing else: after an interruption it begins again, and what it had done before the index
    would be there already. An index that an interrupted build has left is dropped and built again. The migrations
    before it are committed first, with the policies and the rights that a version which runs needs meanwhile.
    """
    for sql in (policies_of(metadata.tables.values()), hardening()):
        op.get_bind().exec_driver_sql(sql)
    with op.get_context().autocommit_block():
        if op.get_bind().scalar(_IS_INVALID, {"name": name}):
            op.drop_index(name, table_name=table, postgresql_concurrently=True)
        op.create_index(name, table, columns, postgresql_concurrently=True, if_not_exists=True, **options)
