"""Conversion of a model's answer to the summary prompt: its texts become one `summary` block."""

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from uuid import UUID

from app.domain.errors import TransientError
from app.domain.kinds import SUMMARY, TEXT
from app.llm.provider import BlockClosed, BlockData, BlockOpened, BlockText, MessageDelta, MessageEnded, Part

# An incomplete summary is refused: the turns that it leaves out would be lost to the model.
_CUT_OFF = frozenset({"max_tokens", "model_context_window_exceeded", "refusal"})


async def as_summary(
    stream: AsyncGenerator[Sequence[Part], None], through: UUID
) -> AsyncGenerator[Sequence[Part], None]:
    """Yields the stream with its text blocks joined into one summary of the turns up to `through`; its other blocks are
    dropped. Raises TransientError if the answer is cut off or has no text.
    """
    summary = _SummaryFilter(json.dumps({"type": SUMMARY, "through": str(through)}))
    async for parts in stream:
        yield [kept for part in parts for kept in summary.feed(part)]


class _SummaryFilter:
    def __init__(self, data: str) -> None:
        self._data = data
        self._keys: list[int] = []  # of the text blocks; the first one is the summary's
        self._has_text = False

    def feed(self, part: Part) -> Iterator[Part]:
        match part:
            case BlockOpened(key=key, type=type):
                if type == TEXT:
                    self._keys.append(key)
                    yield self._opened(part)
            case BlockText(key=key, text=text):
                if key in self._keys:
                    self._has_text = self._has_text or text.strip() != ""
                    yield BlockText(self._keys[0], text)
            case BlockData() | BlockClosed():
                pass
            case MessageDelta(stop_reason=stop_reason) if stop_reason in _CUT_OFF:
                raise TransientError(
                    "no_summary", f"The model did not finish the summary: it stopped with {stop_reason}."
                )
            case MessageEnded():
                if not self._has_text:
                    raise TransientError("empty_summary", "The model wrote no summary.")
                yield BlockClosed(self._keys[0])
                yield part
            case _:
                yield part

    def _opened(self, block: BlockOpened) -> Part:
        self._has_text = self._has_text or block.text.strip() != ""
        if len(self._keys) == 1:
            return block._replace(type=SUMMARY, data=self._data)
        return BlockText(self._keys[0], f"\n\n{block.text}")
