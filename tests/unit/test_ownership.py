"""For each table, the declared path from a row to the row's owner is correct."""

import re
from inspect import signature

import pytest

from turnstream.domain.plans import PERIODS, RATES, SPENT
from turnstream.domain.turns import TRANSITIONS
from turnstream.storage.all_tables import ALL_TABLES, StoredTable
from turnstream.storage.owners.accounts import Accounts
from turnstream.storage.owners.charges import FIGURES
from turnstream.storage.rows import ENDED_STATUSES, MAY_NAME_UPLOADS
from turnstream.storage.sql_files import FOLDER, schema_files

TABLES = [pytest.param(table, id=name) for name, table in ALL_TABLES.items()]
PATHS = ("owner", "chat_id", "turn_id")
WORD = re.compile(r"'(\w+)'")


@pytest.mark.parametrize("table", TABLES)
def test_every_table_names_the_shortest_path_that_its_columns_have(table: StoredTable) -> None:
    shortest = next((path for path in PATHS if path in table.columns), None)
    assert table.ownership.path == shortest


@pytest.mark.parametrize("table", TABLES)
def test_rows_of_a_chat_or_turn_are_deleted_with_it(table: StoredTable) -> None:
    """A foreign key deletes the rows. Rows of turns that have no foreign key are deleted by an erasure."""
    path = table.ownership.path
    if path in {"chat_id", "turn_id"}:
        keys = [key for key in table.foreign_keys if path in key.columns]
        assert all(key.cascades for key in keys)
        assert keys or path == "turn_id"


@pytest.mark.parametrize("table", TABLES)
def test_rows_without_an_owner_are_local_and_open_to_no_role(table: StoredTable) -> None:
    ownership = table.ownership
    if ownership.closed or ownership.nature in {"credential", "trail"}:
        assert ownership.path == "owner"
    if ownership.path is None:
        assert ownership.nature == "local"


def test_every_table_of_the_files_has_an_ownership_behind_those_that_its_rows_refer_to() -> None:
    files = "".join(file.read_text() for file in schema_files())
    assert sorted(ALL_TABLES) == sorted(re.findall(r"^CREATE (?:UNLOGGED )?TABLE (\w+)", files, re.MULTILINE))
    names = list(ALL_TABLES)
    for name, table in ALL_TABLES.items():
        assert all(names.index(key.table) <= names.index(name) for key in table.foreign_keys), name


def test_columns_have_their_types_and_keys() -> None:
    turns, reservations = ALL_TABLES["turns"], ALL_TABLES["reservations"]
    assert turns.columns["parent_role"].computed
    assert not ALL_TABLES["audit"].columns["id"].computed
    assert (turns.columns["request"].type, turns.columns["request"].nullable) == ("json", True)
    assert not turns.columns["chat_id"].nullable
    assert (turns.primary_key, ALL_TABLES["blocks"].primary_key) == (["id"], ["turn_id", "index"])
    assert {key.table for key in turns.foreign_keys} == {"chats", "turns"}
    assert not reservations.foreign_keys


def test_constraints_and_columns_name_the_values_of_the_domain() -> None:
    lines = (FOLDER / "schema.sql").read_text().splitlines()

    def words(name: str) -> set[str]:
        return {word for line in lines if f" {name} " in line for word in WORD.findall(line)}

    assert words("ck_turns_status") == set(TRANSITIONS)
    assert words("ck_turns_terminal_has_end") == set(WORD.findall(ENDED_STATUSES))
    assert words("ix_blocks_naming_uploads") == set(WORD.findall(MAY_NAME_UPLOADS))
    assert {*PERIODS, *RATES} <= ALL_TABLES["accounts"].columns.keys()


def test_what_model_calls_spend_is_charged_and_reserved() -> None:
    assert FIGURES.keys() == set(SPENT)
    assert set(SPENT) <= ALL_TABLES["reservations"].columns.keys()
    assert set(SPENT) <= signature(Accounts.reserve).parameters.keys()
