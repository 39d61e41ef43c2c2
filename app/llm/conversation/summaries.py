"""What a model answers that was asked for a summary: its words become a block of that type, the rest is left out."""

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from uuid import UUID

from app.domain.errors import TransientError
from app.domain.kinds import SUMMARY, TEXT
from app.llm.provider import BlockClosed, BlockData, BlockOpened, BlockText, MessageDelta, MessageEnded, Part

# The reply is no whole summary: what it leaves out would be forgotten.
_CUT_OFF = frozenset({"max_tokens", "model_context_window_exceeded", "refusal"})


async def as_summary(
    stream: AsyncGenerator[Sequence[Part], None], through: UUID
) -> AsyncGenerator[Sequence[Part], None]:
    """The stream with the words of its text blocks as one summary of the turns to `through`. Raises TransientError
    where it is cut off, and at its end where it has no words.
    """
    summary = _Summary(json.dumps({"type": SUMMARY, "through": str(through)}))
    async for parts in stream:
        yield [kept for part in parts for kept in summary.take(part)]


class _Summary:
    def __init__(self, data: str) -> None:
        self._data = data
        self._texts: list[int] = []
        self._said = False

    def take(self, part: Part) -> Iterator[Part]:
        match part:
            case BlockOpened(key=key, type=type):
                if type == TEXT:
                    self._texts.append(key)
                    yield self._opened(part)
            case BlockText(key=key, text=text):
                if key in self._texts:
                    self._said = self._said or text.strip() != ""
                    yield BlockText(self._texts[0], text)
            case BlockData() | BlockClosed():
                pass
            case MessageDelta(stop_reason=stop_reason) if stop_reason in _CUT_OFF:
                raise TransientError("no_summary", f"the model was asked for a summary and stopped ({stop_reason})")
            case MessageEnded():
                if not self._said:
                    raise TransientError("empty_summary", "the model was asked for a summary and wrote none")
                yield BlockClosed(self._texts[0])
                yield part
            case _:
                yield part

    def _opened(self, block: BlockOpened) -> Part:
        self._said = self._said or block.text.strip() != ""
        if len(self._texts) == 1:
            return block._replace(type=SUMMARY, data=self._data)
        return BlockText(self._texts[0], f"\n\n{block.text}")
