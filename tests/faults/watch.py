"""What a test reads from the database: attempts, owners and charged recoveries of turns, and leases of replicas."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg

# Progress resets the recoveries of a turn, so each recovery and each death is recorded when it is charged. Attempts are
# numbered by random steps, so each attempt is recorded when it begins.
_NOTES = """
    CREATE TABLE charged (turn_id uuid, attempt int);
    CREATE FUNCTION note_charge() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
        INSERT INTO charged VALUES (NEW.id, NEW.attempt);
        RETURN NEW;
    END $$;
    CREATE TRIGGER charges AFTER UPDATE ON turns FOR EACH ROW
        WHEN (
            NEW.recoveries > OLD.recoveries
            OR to_jsonb(NEW)->'deaths' > to_jsonb(OLD)->'deaths'  -- a column that the version before may not have
        ) EXECUTE FUNCTION note_charge();
    CREATE TABLE begun (turn_id uuid);
    CREATE FUNCTION note_attempt() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
        INSERT INTO begun VALUES (NEW.id);
        RETURN NEW;
    END $$;
    CREATE TRIGGER attempts AFTER UPDATE ON turns FOR EACH ROW
        WHEN (NEW.attempt > OLD.attempt) EXECUTE FUNCTION note_attempt();
    CREATE TRIGGER first_attempts AFTER INSERT ON turns FOR EACH ROW
        WHEN (NEW.attempt > 0) EXECUTE FUNCTION note_attempt();
"""


class Watch:
    def __init__(self, url: str) -> None:
        self._url = url

    async def begin(self) -> None:
        async with self._connected() as connection:
            await connection.execute(_NOTES)

    async def charged(self) -> int:
        """Returns how many recoveries and deaths were charged to turns. A recovery and a death in one write count
        once.
        """
        return int((await self._rows("SELECT count(*) AS number FROM charged"))[0]["number"])

    async def attempts(self) -> Mapping[UUID, int]:
        """Returns how many attempts each answer has had."""
        rows = await self._rows(
            "SELECT id, count(turn_id) AS begun FROM turns LEFT JOIN begun ON turn_id = id WHERE role = 'assistant'"
            " GROUP BY id"
        )
        return {row["id"]: row["begun"] for row in rows}

    async def owners(self) -> Mapping[str, int]:
        """Returns the id of each running turn, with the port of the replica that runs it."""
        rows = await self._rows(
            "SELECT turns.id, address FROM turns JOIN replicas ON replicas.id = replica WHERE status = 'running'"
        )
        return {str(row["id"]): int(row["address"].rpartition(":")[2]) for row in rows}

    async def leases(self) -> Mapping[UUID, Any]:
        return {row["id"]: row["lease_until"] for row in await self._rows("SELECT id, lease_until FROM replicas")}

    async def _rows(self, query: str) -> list[Any]:
        async with self._connected() as connection:
            return list(await connection.fetch(query))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        connection = await asyncpg.connect(self._url)
        try:
            yield connection
        finally:
            await connection.close()
