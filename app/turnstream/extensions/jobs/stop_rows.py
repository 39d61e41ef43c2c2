"""Stops a job at the request of its owner. The call of the job gets a result, and the turn continues."""

from uuid import UUID

from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import OPEN_STATUSES, to_json
from turnstream.storage.runs.session import CHANNEL, JOBS

# The turn is locked first, as it is for its own writes and for the end of a job: if a stop and an outcome arrive at the
# same time, only the first is stored. The job's runner is notified, and finds that the job is over.
STOP_JOB = Statement(
    f"""
    WITH turn AS (
        SELECT turns.id, status IN {OPEN_STATUSES} AS is_open FROM turns JOIN chats ON chats.id = chat_id
        WHERE turns.id = :turn AND owner = :owner
        FOR NO KEY UPDATE OF turns
    ), over AS (
        UPDATE jobs SET outcome = CASE attempt WHEN 0 THEN CAST(:unrun AS json) ELSE CAST(:stopped AS json) END,
            settled_at = now(), replica = NULL
        FROM turn WHERE turn_id = turn.id AND tool_use_id = :tool_use_id AND settled_at IS NULL
          AND (turn.is_open OR reports)
        RETURNING turn_id, reports
    ), arrived AS (
        UPDATE turns
        SET arrivals = arrivals + 1, status = CASE WHEN status = 'waiting' THEN 'queued' ELSE status END
        WHERE id IN (SELECT turn_id FROM over WHERE NOT reports) AND status IN {OPEN_STATUSES}
        RETURNING id
    )
    SELECT turn_id, pg_notify({CHANNEL}, '{JOBS}') FROM over
    WHERE reports OR EXISTS (SELECT FROM arrived)
    """
)


class JobStops:
    def __init__(self, database: Database) -> None:
        """`database` may read the rows of all owners, so the statement compares the owner of the request."""
        self._database = database

    async def stop(self, owner: str, turn: UUID, tool_use_id: str, *, unrun: object, stopped: object) -> bool:
        """Stops the job of the call. The outcome is `unrun` if the job has not started, else `stopped`. Returns False
        if the job is already over.
        """
        call = {"owner": owner, "turn": turn, "tool_use_id": tool_use_id}
        ends = {"unrun": to_json(unrun), "stopped": to_json(stopped)}
        return bool(await self._database.rows(STOP_JOB, **call, **ends))
