"""Decides whether a background call may continue after its turn, and report its outcome to a later turn."""

from uuid import UUID

from turnstream.domain.jobs import MOST_STARTED
from turnstream.storage.database import Database, Statement

# A call must not report in the chat of an agent, whose caller waits for one answer. It must not report while a replica
# of the previous version lives, which would send the report as text of the user. To prevent an endless chain, the
# condition counts turns that reports have started: these turns begin with a report and follow an empty message.
MAY_REPORT = Statement(
    """
    WITH RECURSIVE started AS (
        SELECT id, parent_id, 0 AS before FROM turns WHERE id = :turn
        UNION ALL
        SELECT earlier.id, earlier.parent_id, before + 1
        FROM started JOIN turns AS question ON question.id = started.parent_id
        JOIN turns AS earlier ON earlier.id = question.parent_id
        WHERE before < CAST(:most AS int)
          AND NOT EXISTS (SELECT FROM blocks WHERE turn_id = question.id)
          AND EXISTS (SELECT FROM blocks WHERE turn_id = started.id AND round = 0 AND type = 'report')
    )
    SELECT (SELECT max(before) FROM started) < CAST(:most AS int)
        AND NOT EXISTS (SELECT FROM replicas WHERE NOT knows_reports AND lease_until > now())
        AND NOT EXISTS (
            SELECT FROM chats JOIN turns ON chat_id = chats.id WHERE turns.id = :turn AND of_turn IS NOT NULL
        ) AS may_report
    """
)


class Reports:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def may_report(self, turn: UUID) -> bool:
        """Whether a call may continue after this turn. Otherwise the turn waits for the call."""
        row = await self._database.row(MAY_REPORT, turn=turn, most=MOST_STARTED)
        return row is not None and bool(row["may_report"])
