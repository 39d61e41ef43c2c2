"""Finds and deletes the rows of an owner."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from turnstream.storage.all_tables import ALL_TABLES
from turnstream.storage.database import LONG, Database, Statement
from turnstream.storage.rows import OPEN_STATUSES

# Chats are deleted first, one by one, because their child rows have no owner column. These tables have the rows that
# outlive the chats. The request for the erasure is deleted last (erasure.py).
_WITH_OWNER: Final = tuple(
    name
    for name, table in ALL_TABLES.items()
    if table.ownership.path == "owner" and table.ownership.nature != "trail" and name not in {"chats", "erasures"}
)
# Tables that name a turn in each row, but have no foreign key to the turns.
_WITHOUT_KEY: Final = tuple(
    name
    for name, table in ALL_TABLES.items()
    if table.ownership.path == "turn_id" and not any(key.columns == ["turn_id"] for key in table.foreign_keys)
)
# Most rows that one step of an erasure reads or deletes.
_STEP = 100

DELETE_TOKENS = Statement("DELETE FROM tokens WHERE owner = :owner RETURNING name")
DELETE_SESSIONS = Statement("DELETE FROM login_sessions WHERE owner = :owner RETURNING id")
GET_OPEN_TURNS_OF_OWNER = Statement(
    f"""
    SELECT turns.id, turns.status = 'running' AS running FROM turns JOIN chats ON chats.id = chat_id
    WHERE owner = :owner AND turns.status IN {OPEN_STATUSES}
    """
)
GET_CHAT_IDS = Statement("SELECT id FROM chats WHERE owner = :owner ORDER BY updated_at, id LIMIT :most")
GET_TURN_IDS = Statement("SELECT id FROM turns WHERE chat_id = :chat", timeout=LONG)
ERASE_CHAT = Statement("DELETE FROM chats WHERE id = :chat AND owner = :owner RETURNING id", timeout=LONG)
ERASE_WITH_TURNS: Final = tuple(
    Statement(f"DELETE FROM {table} WHERE turn_id = ANY(CAST(:turns AS uuid[])) RETURNING turn_id", timeout=LONG)
    for table in _WITHOUT_KEY
)
ERASE_ROWS: Final = {
    table: Statement(
        f"""
        DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE owner = :owner LIMIT :most))
        RETURNING owner
        """,
        timeout=LONG,
    )
    for table in _WITH_OWNER
}
COUNT_ROWS = Statement(
    "SELECT "
    + " + ".join(f"(SELECT count(*) FROM {table} WHERE owner = :owner)" for table in ("chats", *_WITH_OWNER))
    + " AS number",
    timeout=LONG,
)


@dataclass(frozen=True, slots=True)
class ErasureStep:
    """A step of an erasure, which deleted `rows` rows of `table`. `turns` are about to be deleted with their chat."""

    table: str
    rows: int = 0
    turns: Sequence[UUID] = ()


class Owners:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def delete_tokens(self, owner: str) -> Sequence[str]:
        """Deletes the owner's tokens, and returns their names."""
        return [row["name"] for row in await self._database.rows(DELETE_TOKENS, owner=owner)]

    async def delete_sessions(self, owner: str) -> int:
        """Deletes the owner's login sessions, and returns their number."""
        return len(await self._database.rows(DELETE_SESSIONS, owner=owner))

    async def open_turns(self, owner: str) -> tuple[Sequence[UUID], bool]:
        """Returns the turns that have not ended, and whether one of these turns is running."""
        rows = await self._database.rows(GET_OPEN_TURNS_OF_OWNER, owner=owner)
        return [row["id"] for row in rows], any(row["running"] for row in rows)

    async def erase(self, owner: str) -> AsyncGenerator[ErasureStep, None]:
        """Deletes the owner's data in small steps. The next call completes an interrupted step."""
        while chats := await self._database.rows(GET_CHAT_IDS, owner=owner, most=_STEP):
            for row in chats:
                turns = [turn["id"] for turn in await self._database.rows(GET_TURN_IDS, chat=row["id"])]
                yield ErasureStep("turns", turns=turns)  # before the deletion: the rows identify the recordings
                gone = await self._database.rows(ERASE_CHAT, owner=owner, chat=row["id"])
                for statement in ERASE_WITH_TURNS:
                    await self._database.rows(statement, turns=turns)
                yield ErasureStep("chats", len(gone))
        for table, statement in ERASE_ROWS.items():
            while gone := await self._database.rows(statement, owner=owner, most=_STEP):
                yield ErasureStep(table, len(gone))

    async def is_erased(self, owner: str) -> bool:
        row = await self._database.row(COUNT_ROWS, owner=owner)
        return row is not None and row["number"] == 0
