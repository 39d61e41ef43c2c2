"""What a model answers that was asked for a summary: its words become a block of that type, the rest is left out."""

import json
from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

from app.domain.blocks import SUMMARY, TEXT
from app.domain.errors import TransientError
from app.llm.provider import BlockClosed, BlockData, BlockOpened, BlockText, MessageEnded, Part

_OF_BLOCKS = (BlockText, BlockData, BlockClosed)


async def as_summary(
    stream: AsyncGenerator[Sequence[Part], None], through: UUID
) -> AsyncGenerator[Sequence[Part], None]:
    """The stream with the words of its first text block as a summary of the turns to `through`. Raises TransientError
    at its end where it has no words.
    """
    data = json.dumps({"type": SUMMARY, "through": str(through)})
    key: int | None = None
    said = False
    async for parts in stream:
        kept: list[Part] = []
        for part in parts:
            if isinstance(part, BlockOpened):
                if part.type == TEXT and key is None:
                    key = part.key
                    kept.append(part._replace(type=SUMMARY, data=data))
                    said = said or part.text.strip() != ""
            elif not isinstance(part, _OF_BLOCKS):
                if isinstance(part, MessageEnded) and not said:
                    raise TransientError("empty_summary", "the model was asked for a summary and wrote none")
                kept.append(part)
            elif part.key == key and not isinstance(part, BlockData):
                kept.append(part)
                said = said or (isinstance(part, BlockText) and part.text.strip() != "")
        yield kept
