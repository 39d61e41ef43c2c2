"""All tables of the core and of the installed extensions, with the columns that the files `schema.sql` declare."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from turnstream.kit.extension_packages import extension_packages
from turnstream.storage import tables
from turnstream.storage.ownership import Ownership
from turnstream.storage.sql_files import schema_files

# The patterns match `schema.sql`, which is generated from the output of Postgres (tests/support/catalog.py).
_TABLE = re.compile(r"^CREATE (?:UNLOGGED )?TABLE (\w+) \(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r'^    "?([a-z_]+)"? ([a-z]+)(.*)', re.MULTILINE)
_PRIMARY_KEY = re.compile(r"PRIMARY KEY \((.*)\)")
_FOREIGN_KEY = re.compile(r"FOREIGN KEY \((.*)\) REFERENCES (\w+)\(.*?\)(.*)")


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column. `type` is the first word of its type. Postgres computes the values of a `computed` column."""

    name: str
    type: str
    nullable: bool
    computed: bool


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A reference to a row of `table`. `cascades`: if that row is deleted, Postgres deletes the referring row."""

    columns: Sequence[str]
    table: str
    cascades: bool


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table, with its columns by name, in their order."""

    name: str
    ownership: Ownership
    columns: Mapping[str, TableColumn]
    primary_key: Sequence[str]
    foreign_keys: Sequence[ForeignKey]


def _ownerships() -> Iterator[tuple[str, Ownership]]:
    yield from tables.TABLES.items()
    for module, folder in extension_packages().items():
        if (folder / "tables.py").is_file():
            yield from import_module(f"{module}.tables").TABLES.items()


def _stored(name: str, ownership: Ownership, body: str) -> StoredTable:
    columns = [
        TableColumn(column[1], column[2], "NOT NULL" not in column[3], " GENERATED ALWAYS AS (" in column[3])
        for column in _COLUMN.finditer(body)
    ]
    key = _PRIMARY_KEY.search(body)
    references = [
        ForeignKey(each[1].split(", "), each[2], "ON DELETE CASCADE" in each[3]) for each in _FOREIGN_KEY.finditer(body)
    ]
    by_name = {column.name: column for column in columns}
    return StoredTable(name, ownership, by_name, key[1].replace('"', "").split(", ") if key else (), references)


def _all() -> Mapping[str, StoredTable]:
    texts = "".join(path.read_text(encoding="utf-8") for path in schema_files())
    bodies = {found[1]: found[2] for found in _TABLE.finditer(texts)}
    # During the development of a migration, the files do not have its table yet.
    return {name: _stored(name, ownership, bodies[name]) for name, ownership in _ownerships() if name in bodies}


# Each table follows the tables that its rows refer to.
ALL_TABLES: Final[Mapping[str, StoredTable]] = _all()
