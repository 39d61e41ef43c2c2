"""Tool results of which the model was told a part, at once or later: the full text."""

from uuid import UUID

from app.domain.errors import NotFound
from app.storage.database import Database, Statement

GET_WHOLE_ON_PATH = Statement(
    """
    WITH RECURSIVE path AS (
        SELECT id, parent_id, 0 AS depth FROM turns WHERE id = :turn
        UNION ALL
        SELECT turns.id, turns.parent_id, depth + 1 FROM turns JOIN path ON turns.id = path.parent_id
    )
    SELECT coalesce(whole, text) AS whole FROM path JOIN blocks ON turn_id = path.id
    WHERE tool_use_id = :tool_use_id AND type = 'tool_result'
    ORDER BY whole IS NULL, depth, index DESC LIMIT 1
    """
)
GET_RESULT = Statement(
    """
    SELECT coalesce(whole, text) AS text FROM blocks
    JOIN turns ON turns.id = turn_id JOIN chats ON chats.id = chat_id
    WHERE turn_id = :turn AND chat_id = :chat AND owner = :owner
      AND tool_use_id = :tool_use_id AND type = 'tool_result'
    ORDER BY index DESC LIMIT 1
    """
)


class ToolResults:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def whole(self, turn: UUID, tool_use_id: str) -> str | None:
        """The full text of a result on the path to `turn`, the newest with that id that was cut, or else that was not;
        None where there is none.
        """
        row = await self._database.row(GET_WHOLE_ON_PATH, turn=turn, tool_use_id=tool_use_id)
        return row["whole"] if row else None

    async def of_turn(self, owner: str, chat: UUID, turn: UUID, tool_use_id: str) -> str:
        """All that a tool returned, cut or not. Raises NotFound."""
        row = await self._database.row(GET_RESULT, owner=owner, chat=chat, turn=turn, tool_use_id=tool_use_id)
        if row is None:
            raise NotFound(f"there is no result of a call {tool_use_id} in turn {turn}")
        text: str = row["text"]
        return text
