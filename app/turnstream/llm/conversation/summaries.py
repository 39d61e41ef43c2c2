"""Converts a model's summary: its texts become one `summary` block."""

import json
from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

from turnstream.domain.errors import TransientError
from turnstream.domain.kinds import SUMMARY, TEXT
from turnstream.llm.provider import BlockClosed, BlockData, BlockOpened, BlockText, MessageDelta, MessageEnded, Part

# Stop reasons of an incomplete summary, which is refused because the model would lose the missing turns.
_CUT_OFF = frozenset({"max_tokens", "model_context_window_exceeded", "refusal"})


async def as_summary(
    stream: AsyncGenerator[Sequence[Part], None], through: UUID
) -> AsyncGenerator[Sequence[Part], None]:
    """Yields the stream with its text blocks joined into one summary of the turns up to `through`, and without its
    other blocks. Raises TransientError if the answer is truncated or has no text.
    """
    data = json.dumps({"type": SUMMARY, "through": str(through)})
    keys: list[int] = []  # keys of the text blocks; the first key becomes the key of the summary
    has_text = False
    async for parts in stream:
        kept: list[Part] = []
        for part in parts:
            match part:
                case BlockOpened(type=type):
                    if type == TEXT:
                        keys.append(part.key)
                        has_text = has_text or part.text.strip() != ""
                        opened = part._replace(type=SUMMARY, data=data)
                        kept.append(opened if len(keys) == 1 else BlockText(keys[0], f"\n\n{part.text}"))
                case BlockText(key=key, text=text):
                    if key in keys:
                        has_text = has_text or text.strip() != ""
                        kept.append(BlockText(keys[0], text))
                case BlockData() | BlockClosed():
                    pass
                case MessageDelta(stop_reason=reason) if reason in _CUT_OFF:
                    text = f"The model did not finish the summary: it stopped with {reason}."
                    raise TransientError("no_summary", text)
                case MessageEnded():
                    if not has_text:
                        raise TransientError("empty_summary", "The model wrote no summary.")
                    kept += (BlockClosed(keys[0]), part)
                case _:
                    kept.append(part)
        yield kept
