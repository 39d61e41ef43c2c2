"""The reports that replicas write about their running turns."""

from collections.abc import Mapping
from uuid import UUID

import msgspec

from turnstream.domain.activity import Activity
from turnstream.storage.database import Database, Statement

# A replica without a row reports nothing: another replica has declared it dead.
REPORT_ACTIVITY = Statement(
    """
    INSERT INTO activity (replica, reported_at, turns)
    SELECT id, now(), CAST(:turns AS json) FROM replicas WHERE id = :replica
    ON CONFLICT (replica) DO UPDATE SET reported_at = EXCLUDED.reported_at, turns = EXCLUDED.turns
    RETURNING replica
    """
)


async def report_activity(database: Database, replica: UUID, turns: Mapping[UUID, Activity]) -> None:
    await database.row(REPORT_ACTIVITY, replica=replica, turns=msgspec.json.encode(turns).decode())
