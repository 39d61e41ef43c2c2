"""Entries of the audit trail, as operators and owners read them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from turnstream.storage.database import LONG, Database, Row, Statement
from turnstream.storage.rows import from_json

LIST_ENTRIES = Statement(
    """
    SELECT id, created_at, kind, owner, actor, detail FROM audit
    WHERE (CAST(:owner AS text) IS NULL OR owner = :owner) AND (CAST(:kind AS text) IS NULL OR starts_with(kind, :kind))
      AND created_at >= now() - CAST(:age AS interval) AND id < :before
    ORDER BY id DESC LIMIT :limit
    """,
    timeout=LONG,
)
_NEWEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An entry of the audit trail. `owner` is the owner whom the entry concerns; `actor` is the operator who ran a
    command, or the credential of a request. `detail` is a JSON value.
    """

    id: int
    created_at: datetime
    kind: str
    owner: str | None
    actor: str | None
    detail: Any


def entries_of(rows: Iterable[Row]) -> Sequence[AuditEntry]:
    return [AuditEntry(**{**dict(row), "detail": from_json(row["detail"])}) for row in rows]


async def newest_entries(
    database: Database, owner: str | None, kind: str | None, days: float, limit: int, before: int = _NEWEST
) -> Sequence[AuditEntry]:
    """Returns the entries of the last `days` whose kind begins with `kind`, newest first."""
    age = timedelta(days=days)
    return entries_of(await database.rows(LIST_ENTRIES, owner=owner, kind=kind, age=age, limit=limit, before=before))
