"""The audit trail: who did what, and when. Triggers write of tokens, approvals and grants (`audit_*.sql`)."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from turnstream.storage.database import LONG, Database, Statement
from turnstream.storage.retention import ROWS, walk, walk_of
from turnstream.storage.rows import from_json, to_json

NOTE = Statement(
    """
    INSERT INTO audit (kind, owner, actor, detail)
    SELECT :kind, CAST(:owner AS text),
        coalesce(CAST(:actor AS text), nullif(current_setting('turnstream.actor', true), '')), CAST(detail AS json)
    FROM unnest(CAST(:details AS text[])) AS detail
    """
)
LIST_ENTRIES = Statement(
    """
    SELECT id, created_at, kind, owner, actor, detail FROM audit
    WHERE (CAST(:owner AS text) IS NULL OR owner = :owner) AND (CAST(:kind AS text) IS NULL OR starts_with(kind, :kind))
      AND created_at >= now() - CAST(:age AS interval) AND id < :before
    ORDER BY id DESC LIMIT :limit
    """,
    timeout=LONG,
)
SWEEP_AUDIT = walk_of(
    "audit",
    ["id"],
    """
    created_at < now() - CAST(:age AS interval)
    OR kind = 'login.refused' AND created_at < now() - CAST(:refusals_age AS interval)
    """,
)
_NEWEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """`owner` is the one whose it is, `actor` the operator of a command, or the credential of a request. `detail` is a
    JSON value.
    """

    id: int
    created_at: datetime
    kind: str
    owner: str | None
    actor: str | None
    detail: Any


class AuditTrail:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, kind: str, owner: str | None, *details: Mapping[str, Any], actor: str | None = None) -> None:
        """Writes an entry for each of `details`. `actor` is that of a request; a command has its own."""
        values = {"kind": kind, "owner": owner, "actor": actor, "details": [to_json(each) for each in details]}
        await self._database.rows(NOTE, **values)

    async def page(
        self, owner: str | None, kind: str | None, days: float, limit: int, before: int = _NEWEST
    ) -> Sequence[AuditEntry]:
        """The newest entries first, of the last `days`; with those kinds that begin with `kind`."""
        age = timedelta(days=days)
        rows = await self._database.rows(LIST_ENTRIES, owner=owner, kind=kind, age=age, limit=limit, before=before)
        return [AuditEntry(**{**dict(row), "detail": from_json(row["detail"])}) for row in rows]

    def sweep(self, days: float, refusals_days: float) -> AsyncGenerator[int, None]:
        """Removes old entries."""
        ages = {"age": timedelta(days=days), "refusals_age": timedelta(days=min(days, refusals_days))}
        return walk(self._database, SWEEP_AUDIT, {"id": 0}, ROWS, **ages)
