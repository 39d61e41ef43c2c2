"""The audit trail of actions, actors and times. Triggers record tokens, approvals and grants (`audit_*.sql`)."""

from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Any

from turnstream.storage.database import Database, Statement
from turnstream.storage.retention import ROWS, walk, walk_of
from turnstream.storage.rows import to_json

NOTE = Statement(
    """
    INSERT INTO audit (kind, owner, actor, detail)
    SELECT :kind, CAST(:owner AS text),
        coalesce(CAST(:actor AS text), nullif(current_setting('turnstream.actor', true), '')), CAST(detail AS json)
    FROM unnest(CAST(:details AS text[])) AS detail
    """
)
SWEEP_AUDIT = walk_of(
    "audit",
    ["id"],
    """
    created_at < now() - CAST(:age AS interval)
    OR kind = 'login.refused' AND created_at < now() - CAST(:refusals_age AS interval)
    """,
)


class AuditTrail:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, kind: str, owner: str | None, *details: Mapping[str, Any], actor: str | None = None) -> None:
        """Writes an entry for each of `details`. `actor` is a request's actor; a command sets its own actor."""
        values = {"kind": kind, "owner": owner, "actor": actor, "details": [to_json(each) for each in details]}
        await self._database.rows(NOTE, **values)

    def sweep(self, days: float, refusals_days: float) -> AsyncGenerator[int, None]:
        """Removes entries older than `days`, and entries about refused logins older than `refusals_days`."""
        ages = {"age": timedelta(days=days), "refusals_age": timedelta(days=min(days, refusals_days))}
        return walk(self._database, SWEEP_AUDIT, {"id": 0}, ROWS, **ages)
