"""Each view of audit entries shows every field of an entry, and lines that earlier versions wrote keep their bytes."""

import re
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest

from turnstream.extensions.admin.statement_list import statements
from turnstream.extensions.audit_files.chain import BEGIN, line_of, values_of
from turnstream.extensions.self_service.schemas import AuditEntryOut
from turnstream.libraries.audit_entries import AuditEntry

pytestmark = pytest.mark.extensions("admin", "self_service")

ENTRY = AuditEntry(7, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "token.created", "ada", "phone", {"name": "phone"})
FIELDS = {each.name for each in fields(AuditEntry)}
# A file may be verified years after its lines were written. So a field that is added later must not appear in a line if
# it has no value.
WRITTEN = (
    b'{"id":7,"created_at":"2026-01-02T03:04:05.000000+00:00","kind":"token.created","owner":"ada","actor":"phone",'
    b'"detail":{"name":"phone"},"previous":"%b"}\n' % BEGIN.encode()
)
ROOT = Path(__file__).parents[3]
FILES = [
    *(path for path in (ROOT / "app").rglob("*.py")),
    *(path for folder in ("app", "migrations/sql") for path in (ROOT / folder).rglob("*.sql")),
]
# The columns of each INSERT into the audit table, by file. Partial statements and Postgres functions are included.
WRITING = [
    pytest.param(columns, id=str(path.relative_to(ROOT)))
    for path in sorted(FILES)
    for columns in re.findall(r"INSERT INTO audit \(([^)]*)\)", path.read_text(encoding="utf-8"))
]
# The fields that triggers take from the session, and the files that set one of these fields there.
OF_THE_SESSION = FIELDS & {
    name
    for path in FILES
    if path.suffix == ".sql"
    for name in re.findall(r"current_setting\('turnstream\.(\w+)'", path.read_text(encoding="utf-8"))
} - {"owner"}
SET = r"set_config\('turnstream\.(\w+)'"
SETTING = [path for path in FILES if FIELDS & set(re.findall(SET, path.read_text(encoding="utf-8")))]
READING = {name: each.sql for name, each in statements().items() if "actor, detail FROM audit" in each.sql}


def test_a_line_has_each_field() -> None:
    assert values_of(ENTRY).keys() == FIELDS


def test_a_line_that_an_earlier_version_has_written_would_be_written_again() -> None:
    assert line_of(ENTRY, BEGIN) == WRITTEN


def test_owners_see_each_field_of_their_entries() -> None:
    assert AuditEntryOut.model_fields.keys() == FIELDS - {"owner"}


@pytest.mark.parametrize("name", READING)
def test_each_statement_that_reads_entries_reads_each_field(name: str) -> None:
    columns = READING[name].partition("FROM audit")[0].partition("SELECT")[2]
    assert {column.strip() for column in columns.split(",")} == FIELDS


@pytest.mark.parametrize("columns", WRITING)
def test_each_insert_of_an_entry_has_each_field(columns: str) -> None:
    assert {column.strip() for column in columns.split(",")} == FIELDS - {"id", "created_at"}


@pytest.mark.parametrize("path", SETTING, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_place_that_sets_a_field_for_the_triggers_sets_all(path: Path) -> None:
    found = re.findall(SET, path.read_text(encoding="utf-8"))
    assert {name: found.count(name) for name in OF_THE_SESSION} == dict.fromkeys(OF_THE_SESSION, found.count("actor"))
