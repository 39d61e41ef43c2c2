"""Reads user turns in portions: a long message is read while it is sent."""

from dataclasses import replace
from uuid import UUID

from turnstream.domain.errors import NotFound
from turnstream.domain.turns import Turn
from turnstream.storage.chats.turns import BLOCK_COLUMNS, GET_TURN, TurnReads
from turnstream.storage.contents import BLOCKS, IS_SEALED, beginning_of
from turnstream.storage.database import Statement
from turnstream.storage.rows import block_from, turn_from

# Reads at most `:most` characters of a text and one more, which shows that the text is longer. An encrypted text is
# read completely.
_BEGINNING = beginning_of("blocks.text", ":most + 1")
GET_BEGINNINGS = Statement(
    f"SELECT {BLOCK_COLUMNS.replace('blocks.text', f'{_BEGINNING} AS text')} FROM blocks"
    " WHERE turn_id = :turn ORDER BY index",
    opens=[BLOCKS],
)
# Reads a text from `:start` on. An encrypted text is read completely, with the number of characters to skip.
GET_PORTION = Statement(
    f"""
    SELECT turn_id, index, CASE WHEN {IS_SEALED} THEN text ELSE substr(text, :start, :most) END AS text,
        CASE WHEN {IS_SEALED} THEN :start - 1 ELSE 0 END AS start
    FROM blocks WHERE turn_id = :turn AND index = :index
    """,
    opens=[BLOCKS],
)


class StreamedTurns(TurnReads):
    async def beginning(self, owner: str, chat: UUID, turn: UUID, most: int) -> tuple[Turn, frozenset[int]]:
        """Returns a user turn with up to `most` characters of each text, and the indexes of the blocks whose texts are
        longer. Raises NotFound.
        """
        row = await self._database.row(GET_TURN, owner=owner, chat=chat, turn=turn)
        if row is None:
            raise NotFound(f"There is no turn {turn} in chat {chat}.")
        blocks = map(block_from, await self._database.rows(GET_BEGINNINGS, turn=turn, most=most))
        found = {block.index: block for block in blocks}
        cut = frozenset(index for index, block in found.items() if len(block.text) > most)
        return turn_from(row, (), [replace(block, text=block.text[:most]) for block in found.values()]), cut

    async def portion(self, turn: UUID, index: int, offset: int, most: int) -> str:
        """Returns up to `most` characters of a block's text, starting at `offset`. Returns an empty text if the turn
        was deleted.
        """
        row = await self._database.row(GET_PORTION, turn=turn, index=index, start=offset + 1, most=most)
        return row["text"][row["start"] : row["start"] + most] if row else ""
