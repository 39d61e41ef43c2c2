"""Each table names the path by which its rows belong to an owner, and the path leads there."""

import pytest
from sqlalchemy import Table

from turnstream.storage.all_tables import metadata
from turnstream.storage.ownership import ownership_of

TABLES = [pytest.param(table, id=name) for name, table in metadata.tables.items()]
PATHS = ("owner", "chat_id", "turn_id")


@pytest.mark.parametrize("table", TABLES)
def test_every_table_names_the_shortest_path_that_its_columns_have(table: Table) -> None:
    shortest = next((path for path in PATHS if path in table.columns), None)
    assert ownership_of(table).path == shortest


@pytest.mark.parametrize("table", TABLES)
def test_rows_of_a_chat_or_turn_are_deleted_with_it(table: Table) -> None:
    """By their foreign key; an erasure deletes rows of turns without one."""
    path = ownership_of(table).path
    if path in {"chat_id", "turn_id"}:
        keys = [key for key in table.foreign_keys if key.parent.name == path]
        assert all(key.ondelete == "CASCADE" for key in keys)
        assert keys or path == "turn_id"


@pytest.mark.parametrize("table", TABLES)
def test_rows_without_an_owner_are_local_and_open_to_no_role(table: Table) -> None:
    ownership = ownership_of(table)
    if ownership.closed or ownership.nature in {"credential", "trail"}:
        assert ownership.path == "owner"
    if ownership.path is None:
        assert ownership.nature == "local"


def test_a_table_without_an_ownership_is_refused() -> None:
    with pytest.raises(KeyError, match="ownership"):
        ownership_of(Table("strangers", metadata.__class__()))
