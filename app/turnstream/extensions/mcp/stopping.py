"""Cancels the tasks of MCP servers whose calls are over: their turn was cancelled, or their time is up."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import structlog

from turnstream.engine.hooks import Hooks, TurnEnded
from turnstream.storage.database import Database, Statement
from turnstream.storage.rows import from_json

log = structlog.get_logger(__name__)

# The handle is taken with the read: each task is cancelled once, by one replica.
TAKE_STOPPED_TASKS = Statement(
    """
    WITH stopped AS (
        SELECT id, name, handle FROM jobs
        WHERE turn_id = :turn AND kind = 'mcp_task' AND settled_at IS NOT NULL AND handle IS NOT NULL
          AND (outcome IS NULL OR outcome #>> '{outcome,kind}' = 'timeout')
        FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE jobs SET handle = NULL FROM stopped WHERE jobs.id = stopped.id RETURNING jobs.id
    )
    SELECT name, handle FROM stopped JOIN taken USING (id)
    """
)


@runtime_checkable
class TaskSource(Protocol):
    """A source of tools whose calls may be tasks."""

    def has_tool(self, name: str) -> bool: ...
    async def cancel_task(self, name: str, task: str, owner: str) -> None: ...


class StoppedTasks(Hooks):
    """Best effort: a process that is killed before leaves the task to the server, which forgets it after its TTL."""

    def __init__(self, database: Database, sources: Sequence[TaskSource]) -> None:
        self._database = database
        self._sources = sources

    async def turn_ended(self, event: TurnEnded) -> None:
        names = {block.name or "" for block in event.turn.blocks if block.is_call}
        if not any(source.has_tool(name) for source in self._sources for name in names):
            return
        for row in await self._database.rows(TAKE_STOPPED_TASKS, turn=event.turn.id):
            task = from_json(row["handle"])["task"]
            log.info("mcp.task_cancelled", tool=row["name"], task=task)
            for source in self._sources:
                if source.has_tool(row["name"]):
                    await source.cancel_task(row["name"], task, event.owner)
