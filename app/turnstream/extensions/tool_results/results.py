"""Reads the whole texts of tool results from rows."""

from collections.abc import Iterable
from uuid import UUID

from turnstream.domain.errors import NotFound
from turnstream.storage.contents import BLOCKS, JOBS
from turnstream.storage.database import Database, Row, Statement

_REPORTED = """
    LEFT JOIN LATERAL (
        SELECT coalesce(outcome #>> '{outcome,whole}', outcome #>> '{outcome,text}') AS reported FROM jobs
        WHERE jobs.turn_id = blocks.turn_id AND jobs.round = blocks.round AND jobs.tool_use_id = blocks.tool_use_id
          AND reports
    ) AS job ON true
"""
_TEXTS = """turn_id, index, reported, CASE WHEN reported IS NULL THEN whole END AS whole,
    CASE WHEN coalesce(reported, whole) IS NULL THEN text END AS text"""
GET_WHOLE_ON_PATH = Statement(
    f"""
    WITH RECURSIVE path AS (
        SELECT id, parent_id, 0 AS depth FROM turns WHERE id = :turn
        UNION ALL
        SELECT turns.id, turns.parent_id, depth + 1 FROM turns JOIN path ON turns.id = path.parent_id
    )
    SELECT {_TEXTS} FROM path JOIN blocks ON turn_id = path.id {_REPORTED}
    WHERE tool_use_id = :tool_use_id AND type = 'tool_result'
    ORDER BY coalesce(reported, blocks.whole) IS NULL, depth, index DESC LIMIT 1
    """,
    opens=[BLOCKS, JOBS.named(outcome="reported")],
)
GET_RESULT = Statement(
    f"""
    SELECT {_TEXTS} FROM blocks
    JOIN turns ON turns.id = turn_id JOIN chats ON chats.id = chat_id {_REPORTED}
    WHERE turn_id = :turn AND chat_id = :chat AND owner = :owner
      AND tool_use_id = :tool_use_id AND type = 'tool_result'
    ORDER BY index DESC LIMIT 1
    """,
    opens=[BLOCKS, JOBS.named(outcome="reported")],
)


class ToolResults:
    """Reads the full texts of tool results, whether or not the results were truncated for the model."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def whole(self, turn: UUID, tool_use_id: str) -> str | None:
        """Returns the full text of the newest result with this id on the path to `turn`; a truncated result takes
        precedence. Returns None if there is no result.
        """
        row = await self._database.row(GET_WHOLE_ON_PATH, turn=turn, tool_use_id=tool_use_id)
        return _text_of(row) if row else None

    async def of_turn(self, owner: str, chat: UUID, turn: UUID, tool_use_id: str) -> str:
        """Returns the full text of a tool's result, whether or not it was truncated for the model. Raises NotFound."""
        row = await self._database.row(GET_RESULT, owner=owner, chat=chat, turn=turn, tool_use_id=tool_use_id)
        if row is None:
            raise NotFound(f"There is no result of a call {tool_use_id} in turn {turn}.")
        return _text_of(row)


def _text_of(row: Row) -> str:
    texts: Iterable[str | None] = (row[name] for name in ("reported", "whole", "text"))
    return next(text for text in texts if text is not None)
